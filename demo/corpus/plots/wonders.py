"""Plots with a little magic: a fallen star, a wish, a night without sleep."""

from demo.corpus.plots.plot import Plot

STAR = Plot(
    name="star",
    themes=("kindness", "the night sky", "helping", "a magic night"),
    about=("a fallen <bit>", "a <bit> that wants to go home", "the sky"),
    picks={
        "bit": (
            {"bit": "star", "glow": "{It glowed like a tiny lamp|It shone, but only faintly}"},
            {"bit": "cloud", "glow": "{It was as soft as wool and rather wet|It sighed and rained a little}"},
            {"bit": "moonbeam", "glow": "{It was thin and silver and cold|It trembled like a leaf}"},
            {
                "bit": "piece of the rainbow",
                "glow": "{It flickered red and blue and green|Its colours were going pale}",
            },
            {
                "bit": "snowflake",
                "glow": "{It was as big as a plate and perfectly white|It sparkled and shivered}",
            },
        ),
        "lift": (
            {
                "lift": "a big kite",
                "how": "{They tied a long string to a kite and waited for the wind|The wind took the kite "
                "and carried it up and up}",
            },
            {
                "lift": "the tallest tree",
                "how": "{They climbed from branch to branch until the leaves grew thin|Up they climbed, "
                "and did not look down}",
            },
            {
                "lift": "a hundred balloons",
                "how": "{They blew up balloons until their cheeks hurt|They tied the balloons together "
                "with red thread}",
            },
            {
                "lift": "a kind eagle",
                "how": "{They asked the eagle very politely, and it spread its great wings|The eagle bent "
                'down and said, "Climb on"}',
            },
            {
                "lift": "a long ladder",
                "how": "{They borrowed every ladder around and tied them together|They carried the ladder "
                "to the top of the highest hill}",
            },
        ),
    },
    beats=(
        "{One clear night|One summer night|One winter night|Late one evening}, <n> {could not sleep and "
        "looked out of the window|was on <his> way home|sat outside and counted the stars}. {Suddenly|All "
        "at once} something {fell from the sky|dropped softly out of the sky} and landed <s1>.",
        '{<n> ran to look|<n> went to see|Carefully, <n> came closer}. It was a <bit>! <glow>. "{Please '
        'help me|Oh dear|Hello}," {said|whispered} the <bit>. "{I fell down and I want to go home|I '
        'slipped, and now I cannot get back up|I leaned out too far, and here I am}."',
        '{"Do not cry," said <n>. "I will help you."|<n> picked it up very gently.|"I know what it is like '
        'to miss home," said <n>.} {But the sky was so high|But how do you reach the sky|But the sky was '
        "very far away}{!|.}",
        "{First <n> threw it up into the air, but it came down again|First <n> jumped as high as <he> "
        "could, but that was not high at all|First <n> stood on a barrel, but that was not enough}. {Then "
        "<he> went to wake <his> friend <f>, a <fkind>|Then <he> asked <his> friend <f>, a clever "
        '<fkind>}. {<f> rubbed <f.his> eyes and thought. "We need <lift>," <f.he> said.|"I have a idea," '
        'said <f>. "We need <lift>!"}',
        '<how>. {<n> held the <bit> tight|"Hold on!" called <f>|The <bit> began to laugh}. {Higher and '
        "higher it went|It went up, up, up}, until {it was only a small dot|the houses looked like "
        "toys|they could almost touch the sky}.",
        '{"Thank you!" called the <bit>. "I will never forget you!"|And then the <bit> was home '
        'again.|"Goodbye, <n>! Goodbye, <f>!" it called.} {All the sky seemed to smile|The night was '
        "brighter than ever|<n> and <f> waved until their arms were tired}.",
        "{Since then, whenever <n> looks up at night, something winks at <him>|And every year, on the same "
        "night, the <bit> sends down a little light for <n> and <f>|If you look up tonight, you may see it "
        "wink}. {And <n> always winks back|And that is how <n> got a friend in the sky}.",
    ),
    want="<n> wanted to help the <bit> get back to the sky.",
    problem="A <bit> had fallen from the sky and could not go home.",
    solved="<n> and <f> used <lift> to bring it home.",
)

WISH = Plot(
    name="wish",
    themes=("magic", "a wish", "a magic wish", "being content", "greed"),
    about=("a magic <magic>", "a wish that goes wrong", "three wishes", "magic"),
    picks={
        "magic": (
            {"magic": "ring"},
            {"magic": "lamp"},
            {"magic": "shell"},
            {"magic": "coin"},
            {"magic": "spoon"},
            {"magic": "feather"},
            {"magic": "mirror"},
            {"magic": "pebble"},
            {"magic": "key"},
        ),
        "wish": (
            {
                "wish": "to be as big as a house",
                "wrong": "{<he> could not get through the door any more|<his> bed broke, and everyone ran "
                "away from <him>}",
                "miss": "fit into <his> own warm bed",
            },
            {
                "wish": "that everything <he> touched would turn to chocolate",
                "wrong": "{even <his> bed and <his> books were chocolate|when <he> patted the table, it "
                "melted}",
                "miss": "eat a piece of plain bread",
            },
            {
                "wish": "that it would always be summer",
                "wrong": "{the river dried up and the flowers drooped|nobody could sleep, because the sun "
                "never went down}",
                "miss": "feel the cool rain",
            },
            {
                "wish": "to have all the toys in the world",
                "wrong": "{there was no room left to play|the other children had nothing to play with any "
                "more}",
                "miss": "play with <his> friends",
            },
            {
                "wish": "never to have to sleep again",
                "wrong": "{the nights were long and lonely|<he> grew so tired that <he> walked into trees}",
                "miss": "have a good dream",
            },
            {
                "wish": "that everyone would do what <he> said",
                "wrong": "{nobody laughed or told <him> anything any more|even <his> friends only said "
                '"yes, yes"}',
                "miss": "hear somebody say what they really thought",
            },
            {
                "wish": "to fly like a bird",
                "wrong": "{the wind carried <him> far from home|<he> could not come down again}",
                "miss": "stand on firm ground",
            },
            {
                "wish": "to be invisible",
                "wrong": "{nobody said hello to <him> any more|everyone bumped into <him>}",
                "miss": "be seen by <his> friends",
            },
        ),
    },
    beats=(
        "<weather>, <n> found a {old|little|shiny|dusty} <magic> <s1>. {<He> rubbed it clean|<He> picked "
        "it up and turned it over}, and {a small voice spoke|it began to glow|a puff of smoke came out}. "
        '"{I am a magic <magic>|You have woken me}," {said the voice|it said}. "{You may have one wish|I '
        'will grant you a wish|Make a wish, but think well}."',
        "{<n> did not think for long|<n> was so excited that <he> did not think at all|<n> had always "
        'known what <he> wanted}. <He> wished <wish>. {"Are you sure?" asked the <magic>. "Quite sure!" '
        'said <n>.|"As you like," said the <magic>.|There was a flash of light, and it was done.}',
        "{At first it was wonderful|At first <n> was delighted|The first hour was great fun}. {<He> ran to "
        'show it to everyone|"Look at me!" <he> cried|<He> laughed and shouted with joy}. {But soon there '
        "was trouble|But it did not stay that way|But then things went wrong}: <wrong>.",
        "{<n> began to be sorry|By evening, <n> was not happy at all|<n> sat down and cried}. {All <he> "
        "wanted now was to <miss>|How <he> longed to <miss>}. {<His> friend <f>, a <fkind>, came to see "
        '<him>|Only <f>, a <fkind>, dared to come near}. "{What have you done|What is the matter}?" asked '
        "<f>. <n> told <f.him> everything.",
        '{"Then ask the <magic> to take it back," said <f>.|"Go back to the <magic>," said <f>, "and say '
        'that you are sorry."} {Together they went to look for it|They ran all the way}. <n> {held the '
        '<magic> in both hands|bowed to the <magic>}. "Please," <he> said, "{I was foolish|I have learned '
        'my lesson|I do not need this wish}. Make everything as it was before."',
        '{"That is the wisest wish of all," said the <magic>|The <magic> laughed softly|The <magic> was '
        "silent for a long moment}. {There was a flash|There was a puff of smoke|A warm wind blew}, and "
        "everything was as it had always been. {<n> looked around and laughed|<n> hugged <f>|<n> had never "
        "been so glad}. At last <he> could <miss> again.",
        "{And the <magic>? <n> put it back where <he> had found it|<n> threw the <magic> into the deep "
        "water, where nobody would find it|<n> gave the <magic> to <e>, who never wished for anything}. "
        "{Since then, <he> is happy with what <he> has|And <he> never forgot that the best things were "
        "already there|From that day on, <n> thought twice before <he> wished}.",
    ),
    want="<n> wished <wish>.",
    problem="The wish went wrong, because <wrong>.",
    solved="<n> asked the <magic> to make everything as it was before.",
)

SLEEP = Plot(
    name="sleep",
    themes=("bedtime", "going to sleep", "the night", "sweet dreams"),
    about=("someone who cannot sleep", "going to bed", "the night", "sleep"),
    picks={
        "trick": (
            {
                "trick": "count sheep",
                "try": "{counted one hundred sheep, but the last one kept jumping back|counted until <he> "
                "forgot the numbers}",
            },
            {
                "trick": "drink warm milk",
                "try": "{drank a cup of warm milk, but now <he> was wide awake and full|drank some milk "
                "and got a white beard}",
            },
            {
                "trick": "read a dull book",
                "try": "{read a book about stones, but it was far too interesting|read ten pages and "
                "wanted to know how it ended}",
            },
            {
                "trick": "listen to the rain",
                "try": "{listened for rain, but the sky was clear|listened hard, but heard only crickets}",
            },
        ),
        "missing": (
            {
                "missing": "had not said good night to <f>",
                "so": '{went to the window and called, "Good night!"|tiptoed over and whispered, "Good '
                'night"}',
            },
            {
                "missing": "was sorry for being cross with <f> that day",
                "so": '{went to <f> and said, "I am sorry"|wrote <f.him> a little letter}',
            },
            {
                "missing": "missed <his> old blanket",
                "so": "{found it on the washing line and wrapped <himself> in it|fetched it from the "
                "chair, where <f> had folded it}",
            },
            {
                "missing": "was thinking too much about tomorrow",
                "so": "{told <f> all about it, and then it was not so big any more|put <his> worries in a "
                "box until morning}",
            },
        ),
    },
    beats=(
        "{Night had come|The moon was up|It was long past bedtime}, and everyone was asleep, {except "
        "<n>|but not <n>}. {<He> turned to the left, and <he> turned to the right|<He> lay on <his> back "
        "and looked at the ceiling|<His> pillow was too warm, and then too cold}. {It was no use|Sleep "
        "would not come}.",
        '{<n> got up and went to see <e>|<e> was still awake}. "Try to <trick>," said <e>. {That sounded '
        "easy|So <n> tried it}. <He> <try>.",
        "{Outside, the night was full of small sounds|A owl flew past like a soft shadow|The stars "
        "twinkled as if they were laughing}. {There <n> met <his> friend <f>, a <fkind>|<n> looked out and "
        'saw <f>, a <fkind>, sitting in the moonlight}. "{Are you awake too|Why are you not asleep}?" '
        "whispered <f>.",
        '"{I cannot sleep|Sleep has forgotten me|I have tried everything}," said <n>. "{Then something is '
        'still on your mind|Is there something you have not done|What are you thinking about}," said <f>. '
        "{<n> thought about it|<n> was quiet for a moment}. And then <he> knew: <he> <missing>!",
        "So <he> <so>. {All at once <he> felt warm and light|That was it|A big yawn came, and then another "
        'one}. {"Good night, <n>," said <f>|"Sleep well," said <f> softly}.',
        "{<n> crept back into <his> bed|<n> lay down and closed <his> eyes}. {The moon shone on <his> "
        "nose|The wind hummed a quiet song}, {and before <he> could count to three, <he> was fast "
        "asleep|and soon there was only a small, happy snore}. {<He> dreamed of {boats and clouds|green "
        "hills|flying over the sea}|And in <his> dream <he> flew over the roofs}. {Good night|Sweet "
        "dreams|Sleep well}!",
    ),
    want="<n> wanted to fall asleep.",
    problem="<n> could not sleep, because <he> <missing>.",
    solved="<f> helped <him> to find out what was wrong, and then <n> fell asleep.",
)
