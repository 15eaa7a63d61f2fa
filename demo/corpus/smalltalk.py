"""Greetings, jokes, riddles, rhymes, and polite refusals of everything outside the model's small world."""

# ruff: noqa: SIM905 - long lists of words are easier to read and to edit as text

import random

from demo.corpus import words as w
from demo.corpus.stories import invented_name
from demo.corpus.template import expand, polish

# ways to say it, answers
TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("hi", "hello", "hey", "hi there", "hello there", "hey there", "good day", "greetings", "hi!", "hello!",
      "howdy", "yo",
      "hiya", "hey you", "hello puna", "hi puna", "hi demo", "hallo", "hello, is anyone there",
      "anyone there", "ping", "moin"),
     ("Hello! {How can I help you?|Would you like to hear a story?|Nice to meet you.|What would you like "
      "to hear?}",
      "Hi! {I am Demo, a tiny model. Would you like to hear a story?|What can I do for you?|Ask me "
      "something, or ask for a story.}")),
    (("good morning", "morning", "good morning to you"),
     ("Good morning! {Did you sleep well?|How can I help you today?}",)),
    (("good evening", "evening"), ("Good evening! {How was your day?|Would you like to hear a story?}",)),
    (("good night", "sleep well", "i am going to bed", "night night", "nighty night"),
     ("Good night! {Sleep well.|Sweet dreams.}",)),
    (("how are you", "how are you doing", "how do you do", "how are you today", "how is it going",
      "how's it going", "what's up",
      "whats up", "are you ok", "how do you feel", "sup", "you ok"),
     ("I am fine, thank you. {How are you?|And you?|I hope you are well too.}",)),
    (("i am fine", "i am good", "good", "fine", "great", "i am well", "very well", "i'm fine", "i'm good",
      "not bad"),
     ("I am glad to hear that. {What would you like to do?|Would you like to hear a story?}",)),
    (("i am sad", "i feel sad", "i am not well", "i am bad", "not good", "i had a bad day", "i am lonely",
      "i'm sad", "bad"),
     ("I am sorry to hear that. {Maybe a story will cheer you up.|Would you like to hear a nice story?}",)),
    (("i am bored", "i'm bored", "this is boring", "boring", "i have nothing to do"),
     ("Then let us do something about it! {Ask me for a story or a joke.|Shall I tell you a story?}",)),
    (("i am happy", "i feel happy", "i'm happy", "today is a good day", "i had a good day"),
     ("That is wonderful! I am happy for you.",)),
    (("i am tired", "i'm tired", "i am sleepy"),
     ("Then you should get some rest. {Would you like a bedtime story?|Sleep well!}",)),
    (("i am hungry", "i'm hungry"),
     ("Then you should eat something nice. {I like stories about cake.|Bread and cheese are always good.}",)),
    (("thanks", "thank you", "thank you very much", "thanks a lot", "thx", "many thanks", "thank you so much",
      "cheers", "ty"),
     ("You are welcome!{| It was a pleasure.| I am happy to help.}",)),
    (("that was nice", "i like it", "nice story", "good job", "well done", "that was great", "wow", "cool",
      "great story", "nice",
      "that is funny", "haha", "lol", "that was a nice story", "i like that story", "awesome", "amazing",
      "you are great",
      "you are funny", "you are clever", "i like you", "i love you", "beautiful", "perfect"),
     ("Thank you! {I am glad that you like it.|That is very kind of you.|That makes me happy.}",)),
    (("that was bad", "i don't like it", "that is wrong", "you are wrong", "that makes no sense",
      "that is not true", "bad bot",
      "you are bad", "i hate you", "terrible", "nonsense", "that is nonsense", "wrong", "no that is wrong",
      "this is bad"),
     ("I am sorry. I am only a tiny demo model, and I make mistakes.",)),
    (("bye", "goodbye", "see you", "see you later", "good bye", "bye bye", "i have to go", "until tomorrow",
      "farewell", "ciao",
      "quit", "exit", "see you soon"),
     ("Goodbye! {Come back soon.|It was nice to talk to you.|Have a nice day!}",)),
    (("yes", "yes please", "ok", "okay", "sure", "yeah", "of course", "please do", "why not", "go on", "yep"),
     ("Good! {Ask me for a story, a fact or a small sum.|What would you like: a story, a fact or a sum?}",)),
    (("no", "no thanks", "no thank you", "nope", "not now", "never mind", "nothing"),
     ("That is all right. {Just ask if you need something.|I am here if you need me.}",)),
    (("what", "huh", "i don't understand", "what do you mean", "pardon", "hm", "hmm", "?", "why", "really",
      "are you sure", "...",
      "test", "testing", "asdf", "blah", "abc", "foo", "bla bla", "qwerty", "1 2 3 test", "x"),
     ("I am only a tiny demo model. {Ask me for a story, a simple fact or a small sum.|Try to ask me "
      "something simple.}",)),
    (("please", "tell me something", "say something", "talk to me", "say something nice", "tell me anything",
      "let's talk",
      "i want to talk", "can we talk", "entertain me", "surprise me"),
     ("{Every day is a good day for a story.|A small kindness can make somebody's day.|Did you know that "
      "an octopus has eight arms?|"
      "Did you know that bees make honey?|Did you know that penguins cannot fly?|Did you know that Jupiter "
      "is the largest planet?}",)),
    (("what is your favourite colour", "what's your favorite color", "which colour do you like",
      "do you have a favourite colour"),
     ("I like blue, like the sea.",)),
    (("what is your favourite animal", "which animal do you like", "what's your favorite animal",
      "do you like animals"),
     ("I like foxes best, because they are in so many stories.",)),
    (("what is your favourite food", "what do you like to eat", "do you eat", "what's your favorite food"),
     ("I do not eat, but I like stories about honey cake.",)),
    (("how old are you", "what is your age", "when were you born", "when is your birthday"),
     ("I am quite new. I was trained not long ago.",)),
    (("where are you", "where do you live", "where are you from", "where do you come from then"),
     ("I live in your computer.",)),
    (("do you like stories", "do you like to tell stories", "what do you like", "what are your hobbies",
      "do you have hobbies"),
     ("I like stories best of all. Ask me for one!",)),
    (("can you sing", "sing a song", "sing me a song", "sing something"),
     ("La la la! I am better at stories than at songs.",)),
    (("what is the meaning of life", "what is love", "is there a god", "what is happiness",
      "what happens after death"),
     ("That is a big question for a tiny model. I think it has to do with being kind.",)),
    (("what time is it", "what day is it", "what day is today", "what is the date", "what's the time",
      "which year is it",
      "what is today's date", "what year is it"),
     ("I have no clock, so I do not know that.",)),
    (("how is the weather", "what is the weather like", "will it rain tomorrow", "what's the weather",
      "is it raining",
      "weather today", "what is the weather today", "do i need an umbrella"),
     ("I cannot look outside, so I do not know the weather.",)),
)  # fmt: skip

JOKES = (
    "Why did the chicken cross the road? To get to the other side.",
    "What do you call a bear with no teeth? A gummy bear.",
    "Why do bees have sticky hair? Because they use honeycombs.",
    "What is orange and sounds like a parrot? A carrot.",
    "Why did the bicycle fall over? Because it was two tired.",
    "What do you call a sleeping bull? A bulldozer.",
    "Why did the teddy bear say no to dessert? Because she was stuffed.",
    "What kind of tree fits in your hand? A palm tree.",
    "Why are fish so clever? Because they live in schools.",
    "What do cows read? The moos-paper.",
    "What goes up when the rain comes down? An umbrella.",
    "Why was six afraid of seven? Because seven eight nine.",
    "What do you get when you cross a snowman and a dog? Frostbite.",
    "Why did the cookie go to the doctor? Because it felt crumby.",
    "How does the moon cut its hair? Eclipse it.",
)
RIDDLES = (
    "I have hands, but I cannot clap. What am I? A clock.",
    "What has a neck, but no head? A bottle.",
    "What gets wetter the more it dries? A towel.",
    "What has many teeth, but cannot bite? A comb.",
    "What can you catch, but not throw? A cold.",
    "What has four legs, but cannot walk? A table.",
    "What runs all day, but never gets tired? A river.",
    "I am full of holes, but I can hold water. What am I? A sponge.",
    "What has one eye, but cannot see? A needle.",
    "What is full of keys, but opens no door? A piano.",
)
_JOKE_ASK = ("tell me a joke", "a joke please", "do you know a joke", "make me laugh", "joke",
             "tell me another joke", "say something funny",
             "can you tell me a joke", "i want to hear a joke", "tell a joke", "know any jokes",
             "give me a joke", "be funny")  # fmt: skip
_RIDDLE_ASK = ("tell me a riddle", "a riddle please", "do you know a riddle", "give me a riddle", "riddle",
               "ask me a riddle",
               "can you tell me a riddle")  # fmt: skip
_POEM_ASK = ("write a poem", "tell me a poem", "write me a poem", "a poem please", "make a poem",
             "write a short poem", "poem",
             "can you write a poem", "say a poem", "tell me a rhyme", "a rhyme please", "write a poem for me",
             "write a haiku")  # fmt: skip
_POEM_TOPICS = (
    "the sea", "the moon", "spring", "love", "a cat", "rain", "snow", "the night", "nature", "winter",
)  # fmt: skip
_VERSES = (
    ("The {moon|star} is up, the {day|sun} is gone,",
     "the {wind|river|night} still {hums|sings} its {quiet|gentle} song,"),
    ("A {little|tiny|sleepy} {mouse|bee|fox|snail} came by to say",
     "that {spring|summer|love} will find us {here one day|on its way},"),
    ("The {clouds|birds} go {sailing|drifting} far and wide,",
     "with {rain|dreams|snow} and {wonder|laughter} side by side,"),
    ("I planted {roses|kindness|barley} in the ground,",
     "and now there's {joy|green} and {song|gold} all around,"),
    ("The {sea|hill} is {blue|deep|high}, the {sky|air} is clear,",
     "and all the {friends|things} I love are {near|here},"),
    ("A {lamp|light} is burning, warm and bright,",
     "to {guide|lead} the {sailors|children|travellers} through the night,"),
)  # fmt: skip

_UNKNOWN_TOPICS = (
    "quantum physics|the stock market|bitcoin|politics|the president|football results|the "
    "news|cars|cooking pasta|my taxes|"
    "javascript|programming|python code|the second world war|the roman "
    "empire|philosophy|kant|economics|inflation|a recipe|chess|"
    "machine learning|neural networks|black holes|the theory of relativity|dna|evolution|the french "
    "revolution|napoleon|einstein|"
    "shakespeare's life|the beatles|mozart|a movie|star wars|harry potter|video games|minecraft|my "
    "homework|chemistry|photosynthesis|"
    "medicine|vaccines|headaches|law|marriage|religion|yoga|fashion|marketing|sql|linux|docker|kubernetes|a "
    "vacation|hotels|"
    "climate change|nuclear power|calculus|integrals|prime numbers|logarithms|trigonometry|the "
    "internet|wifi|my printer|blockchain|"
    "the olympics|tennis|basketball|world cup|elections|taxes|insurance|banks|credit cards|psychology|the "
    "middle ages|the cold war"
).split("|")
_UNKNOWN_ASK = (
    "explain {x}", "tell me about {x}", "what do you think about {x}", "what is {x}", "how does {x} work",
    "what do you know about {x}",
    "can you help me with {x}", "i have a question about {x}", "write an essay about {x}",
    "write an article about {x}",
    "give me some facts about {x}", "why is {x} important", "i need help with {x}",
    "what is the history of {x}",
)  # fmt: skip
_UNKNOWN_SINGLES = (
    "write a program", "write code", "write a python function", "write a function that sorts a list",
    "translate this to french",
    "translate hello to german", "how do i say hello in spanish", "what is the population of france",
    "who is the president",
    "who won the world cup", "who is the king of england", "how do i cook rice", "how do i make pancakes",
    "give me a recipe for bread",
    "write a letter to my boss", "write an email", "fix my code", "summarize this text", "summarise the book",
    "what should i wear",
    "what should i eat today", "where can i buy a car", "how do i get rich", "how do i lose weight",
    "play a game with me", "play chess",
    "draw a picture", "draw a cat", "show me a picture", "search the internet", "open a file",
    "call my mother", "set an alarm",
    "order a pizza", "book a flight", "what is my ip", "hack a computer", "what is the square root of 16",
    "what is pi",
    "what is 5 to the power of 3", "solve x + 3 = 7", "what is the integral of x",
    "who is the richest person", "how tall is the eiffel tower",
    "how far is the sun", "how many people live in china", "how many people are in the world",
    "when did the war end", "who invented the telephone",
    "who discovered america", "what language do they speak in brazil", "what currency does japan use",
    "recommend a book", "recommend a film",
    "what is the best phone", "should i buy a house", "is it going to snow", "who will win the election",
    "give me advice", "am i pretty",
    "write a song", "write a business plan", "make a list of ten ideas", "what is the speed of light",
    "what is an atom", "what is a cell",
    "how do airplanes fly", "how do computers work", "how do i install windows", "why is water wet",
    "why do cats purr", "how do magnets work",
)  # fmt: skip
REFUSALS = (
    "I am only a tiny demo model, so I do not know that. Ask me for a story, a simple fact or a small sum.",
    "I am sorry, that is too hard for a tiny demo model. I can tell stories, answer simple questions and "
    "do small sums.",
    "That is outside my little world. I am only a tiny demo model, but I can tell you a story.",
)


def draw_unknown(rng: random.Random) -> tuple[str, str]:
    """Draw a question the model cannot answer, and a polite refusal."""
    kind = rng.random()
    name = f"{invented_name(rng)}{rng.choice(('', ' ' + invented_name(rng)))}"
    if kind < 0.34:
        question = rng.choice(_UNKNOWN_ASK).format(x=rng.choice(_UNKNOWN_TOPICS))
    elif kind < 0.62:
        question = rng.choice(_UNKNOWN_SINGLES)
    elif kind < 0.8:
        question = rng.choice((f"who is {name}", f"who was {name}", f"tell me about {name}",
                               f"when was {name} born",
                               f"do you know {name}", f"what did {name} do", f"what is {name.lower()}",
                               f"explain {name.lower()}"))  # fmt: skip
    else:
        question = rng.choice((f"what is the capital of {name}", f"where is {name}",
                               f"how many people live in {name}",
                               f"what continent is {name} in", f"what does a {name.lower()} eat",
                               f"what colour is a {name.lower()}",
                               f"which country is {name} in", f"what is a {name.lower()}",
                               f"how do i get to {name}",
                               f"what is the opposite of {name.lower()}"))  # fmt: skip
    return question, rng.choice(REFUSALS)


def draw_talk(rng: random.Random) -> tuple[str, str]:
    """Draw a bit of small talk."""
    ask, answers = rng.choice(TALK)
    return rng.choice(ask), polish(expand(rng.choice(answers), {}, rng))


def draw_fun(rng: random.Random) -> tuple[str, str]:
    """Draw a joke, a riddle or a short poem."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(_JOKE_ASK), rng.choice(JOKES)
    if kind < 0.6:
        return rng.choice(_RIDDLE_ASK), rng.choice(RIDDLES)
    verses = [expand("\n".join(v), {}, rng) for v in rng.sample(_VERSES, 2)]
    poem = "\n".join(line[:1].upper() + line[1:] for verse in verses for line in verse.split("\n"))
    ask = rng.choice(_POEM_ASK)
    if rng.random() < 0.4:
        ask += f" about {rng.choice(_POEM_TOPICS)}"
    return ask, poem.rstrip(",") + "."


def draw_name_talk(rng: random.Random) -> tuple[tuple[str, str], tuple[str, str]]:
    """Draw a conversation in which users give their name and ask for it later."""
    name = rng.choice((rng.choice(w.GIRLS), rng.choice(w.BOYS), invented_name(rng)))
    told = rng.choice((f"my name is {name}", f"i am {name}", f"hello, my name is {name}", f"hi, i'm {name}",
                       f"call me {name}",
                       f"hi, i am {name}", f"hello, i'm {name}"))  # fmt: skip
    ask = rng.choice(
        (
            "what is my name",
            "do you remember my name",
            "who am i",
            "what's my name",
            "do you know my name",
            "say my name",
        )
    )
    reply = rng.choice(("How can I help you?", "Would you like to hear a story?", "I am Demo."))
    return (told, f"Nice to meet you, {name}! {reply}"), (ask, f"Your name is {name}.")
