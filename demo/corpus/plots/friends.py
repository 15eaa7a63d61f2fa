"""Plots between friends: a kindness returned, a quarrel, a present, a new neighbour."""

from demo.corpus.plots.plot import Plot

KINDNESS = Plot(
    name="kindness",
    themes=("kindness", "helping others", "being kind", "gratitude"),
    about=("helping someone", "a kind deed", "a good deed"),
    picks={
        "hurt": (
            {
                "hurt": "had a thorn in <f.his> foot",
                "aid": "{<n> pulled it out, very gently|<n> took the thorn out and washed the foot}",
            },
            {
                "hurt": "was caught in a net",
                "aid": "{<n> bit through the ropes, one by one|<n> untied every knot}",
            },
            {
                "hurt": "had fallen into a hole",
                "aid": "{<n> let down a long branch|<n> made a rope out of <his> scarf}",
            },
            {
                "hurt": "had nothing to eat",
                "aid": "{<n> gave <f.him> half of <his> lunch|<n> shared <his> last piece of bread}",
            },
            {
                "hurt": "was shivering with cold",
                "aid": "{<n> gave <f.him> <his> own coat|<n> made a small fire and some tea}",
            },
            {
                "hurt": "was stuck in the mud",
                "aid": "{<n> pulled and pulled until <f.he> was free|<n> laid down a board and pulled "
                "<f.him> out}",
            },
        ),
        "danger": (
            {
                "danger": "a flood came",
                "rescue": "{<f> came in a little boat and took <him> to dry land|<f> pulled <him> out of "
                "the water just in time}",
            },
            {
                "danger": "<n> got lost in a snowstorm",
                "rescue": "{<f> heard <his> cry and led <him> home|<f> followed <his> footprints and found "
                "<him>}",
            },
            {
                "danger": "<n> fell ill with a fever",
                "rescue": "{<f> brought <him> herbs and sat beside <his> bed|<f> cooked soup and told "
                "<him> stories until <he> was well}",
            },
            {
                "danger": "<n>'s roof blew away in a storm",
                "rescue": "{<f> came with a hammer and a bag of nails|<f> worked all day, and in the "
                "evening there was a new roof}",
            },
            {
                "danger": "the winter was long, and <n>'s cupboard was empty",
                "rescue": "{<f> stood at the door with a basket full of food|<f> brought nuts and apples "
                "and a big cheese}",
            },
            {
                "danger": "<n> slipped and hung from a branch above the river",
                "rescue": "{<f> caught <him> just in time|<f> threw <him> a rope and pulled <him> back}",
            },
        ),
    },
    beats=(
        "{<n> was not rich, but <he> always had a kind word|<n> liked to walk and look at things|<n> was "
        "always in a hurry, but not too much of a hurry to be kind}.",
        "<weather>, <n> {was on <his> way to the market|went for a walk|was gathering wood} when <he> "
        "heard somebody {crying|calling for help|sigh}. {It came from <s1>|<He> looked and listened}. "
        "There <he> found a <fkind> {named|called} <f>, who <hurt>.",
        '{"Please do not be afraid of me," said <f>.|"Everyone else just walked past," said <f>.|"Can you '
        'help me?" asked <f>.} {<n> did not think twice|Of course <n> wanted to help|"Hold still," said '
        "<n>}. <aid>.",
        '{"Thank you," said <f>. "I will never forget this."|"One day I will help you too," said <f>.|<f> '
        'smiled for the first time that day.} {"It was nothing," said <n>, and went home happy|<n> waved '
        'and went on <his> way|"Take care," said <n>}.',
        "{Weeks went by|Many months passed|Summer turned into autumn}, {and <n> almost forgot about it|and "
        "<n> was busy with other things}. Then, one day, <danger>. {<n> did not know what to do|<n> "
        "thought that all was lost|There was nobody near to help}.",
        "{But somebody had not forgotten|But then there was a knock|But <n> was not alone}. <rescue>. "
        '{"You helped me once," said <f>. "Now it is my turn."|"You!" cried <n>. "Yes, me," said <f>. '
        '"Friends help each other."}',
        "{After that, the two were never apart for long|Since that day they have been the best of "
        "friends|They had tea together every Sunday from then on}. {Kindness always finds its way back|A "
        "small kindness can grow into a big one|And <n> was glad that <he> had stopped that day}.",
    ),
    want="<n> wanted to help <f>, who <hurt>.",
    problem="Later on, <danger>.",
    solved="<f> remembered <n>'s kindness and helped <him>.",
)

QUARREL = Plot(
    name="quarrel",
    themes=("friendship", "sharing", "saying sorry", "two friends", "a quarrel"),
    about=("two friends who quarrel", "friends and a <thing>", "friendship"),
    picks={
        "thing": (
            {
                "thing": "red sledge",
                "both": "{They rode down the hill together, and it was twice as fast|One pulled and the "
                "other rode, and then they changed places}",
            },
            {
                "thing": "big pear",
                "both": "{They cut it in two, and both halves were sweet|They baked it into a pie for two}",
            },
            {
                "thing": "blue ball",
                "both": "{They threw it to each other until the sun went down|They invented a game for two}",
            },
            {
                "thing": "wooden swing",
                "both": "{One swung and the other pushed, and then they changed places|They built a second "
                "seat, side by side}",
            },
            {
                "thing": "fishing rod",
                "both": "{They took turns and caught five fish|One held the rod, and the other held the "
                "bucket}",
            },
            {
                "thing": "drum",
                "both": "{One played the drum, and the other sang|They marched around and took turns}",
            },
            {
                "thing": "little boat",
                "both": "{Each of them took one oar|One rowed, and the other watched for rocks}",
            },
            {
                "thing": "warm blanket",
                "both": "{It was big enough for two, and warmer that way|They built a tent with it}",
            },
            {
                "thing": "box of paints",
                "both": "{They painted one big picture together|One painted the sky, and the other painted "
                "the sea}",
            },
        )
    },
    beats=(
        "<His> best friend was a <fkind> {named|called} <f>. {They did everything together|They had been "
        "friends as long as anyone could remember|You never saw one without the other}.",
        '<weather>, they found a <thing> <s1>. {"It is mine!" said <n>. "I saw it first!" "No, it is '
        'mine," said <f>. "I touched it first!"|Both of them wanted it at once. "Let go!" cried <n>. "You '
        'let go!" cried <f>.|"I want it," said <n>. "But I want it too," said <f>.}',
        "{They pulled and pushed|They shouted until they were hoarse|Neither of them would give in}. {In "
        "the end, <n> took the <thing> and walked away|<n> was faster, grabbed the <thing> and ran "
        'home|"Then keep it," said <f> with tears in <f.his> eyes, and went home}.',
        "{So <n> had the <thing> all to <himself>|Now the <thing> belonged to <n>}. {But it was no fun at "
        "all|But, strange to say, <he> was not happy|But somehow it did not make <him> happy}. {There was "
        "nobody to laugh with|It was so quiet without <f>|<He> missed <f>'s voice}.",
        '?<n> went to see <e>. "{What is worth more, a <thing> or a friend|Can a <thing> tell you a '
        'joke|Does the <thing> miss you when you are gone}?" asked <e>. {<n> looked at the floor|<n> did '
        "not have to think for long|<n> knew the answer}.",
        "{At home, <f> was sad as well|That evening, <f> sat at the window and was just as sad|<f> could "
        "not sleep either}. {The next morning|At sunrise|After breakfast}, <n> took the <thing> and went "
        "to <f>'s house. {Halfway there, they met|<f> was already standing at the door}.",
        '"{I am sorry|I was wrong|I am so sorry, <f>}," said <n>. "{You can have it|It is yours|Let us '
        'share it}." "{I am sorry too|No, I am sorry|I was silly too}," said <f>. {They hugged for a long '
        "time|They shook hands and began to laugh|And just like that, everything was good again}.",
        "<both>. {It was much more fun than before|They wondered why they had not thought of that "
        "before|And it was the best day of the year}. {Good things are better when you share them|From "
        "that day on, they shared everything|They still quarrel sometimes, but never for long}.",
    ),
    want="<n> wanted to have the <thing>, but most of all <he> wanted <his> friend back.",
    problem="<n> and <f> quarrelled about a <thing>.",
    solved="They said sorry and shared the <thing>.",
)

GIFT = Plot(
    name="gift",
    themes=("a birthday", "a present", "giving", "a surprise"),
    about=("a birthday", "a present for a friend", "a <gift>", "a birthday party"),
    picks={
        "gift": (
            {
                "gift": "song",
                "make": "{wrote a little song about all the things they had done together|hummed and "
                "hummed until <he> had a tune}",
                "give": "sang it in front of everyone",
            },
            {
                "gift": "cake",
                "make": "{mixed flour, eggs and honey|picked berries and baked all afternoon}",
                "give": "carried in the cake with all its candles",
            },
            {
                "gift": "necklace of shells",
                "make": "{gathered the prettiest shells|threaded shells on a string, one by one}",
                "give": "laid it in <f>'s hands",
            },
            {
                "gift": "wooden bird",
                "make": "{took a piece of wood and began to carve|carved until there were chips everywhere}",
                "give": "put it on the table",
            },
            {
                "gift": "story",
                "make": "{wrote a story in which <f> was the hero|sat down with a pencil and a pile of "
                "paper}",
                "give": "read it aloud",
            },
            {
                "gift": "garland of flowers",
                "make": "{picked flowers in every colour|wove daisies and poppies together}",
                "give": "put it on <f>'s head",
            },
            {
                "gift": "warm hat",
                "make": "{learned to knit from <e>|knitted day and night}",
                "give": "pulled it over <f>'s ears",
            },
        ),
        "dream": (
            {"dream": "a golden bell"},
            {"dream": "a silver cup"},
            {"dream": "a silk scarf"},
            {"dream": "a big drum"},
            {"dream": "a shiny telescope"},
            {"dream": "a red bicycle"},
            {"dream": "a glass ball"},
        ),
    },
    beats=(
        "{Soon it would be the birthday of <his> friend <f>, a <fkind>|<His> friend <f>, a <fkind>, was "
        "going to have a birthday party}. <n> wanted to give <f.him> {the best present in the "
        "world|something very special|something nobody else would give}.",
        "<weather>, <he> saw <dream> in {a shop window|the window of the toy shop|a stall at the market}. "
        '{"That is it!" thought <n>|It was perfect}. But {it cost far too much|<he> had only three '
        "coins|<his> pocket was empty}. {<n> went home with <his> head down|<n> sighed all the way home}.",
        "{<He> tried to earn some money|<He> tried to sell lemonade}, but {it rained all day|nobody "
        "came|everything went wrong}. {The birthday was only one day away|There was hardly any time left}. "
        '{"I have nothing to give," <n> told <e>.|"Now I cannot go to the party," <n> said to <e>.}',
        '{"A present does not have to be bought," said <e>.|"What can you make with your own hands?" asked '
        '<e>.|"The best presents come from the heart," said <e>.} {<n> thought about that|That gave <n> a '
        "idea}. <He> would give <f> a <gift>! So <he> <make>. {<He> worked until the moon was high|It was "
        "not perfect, but it was made with love}.",
        "{The next day, all the friends came|At the party, the table was full of presents}. {There were "
        "big boxes with golden ribbons|Everyone had brought something shiny}. <n> {felt very small|was "
        "suddenly shy|waited until the end}. Then <he> <give>.",
        "{<f> did not say anything at first. <f.He> had tears in <f.his> eyes.|The room went quiet.|<f> "
        'looked at <n> with big eyes.} "{You made this for me|Nobody has ever made anything for me|This is '
        'the best present of all}," said <f>{.|, and hugged <him>.}',
        "{Then they {danced and sang until late|ate cake until they could eat no more|played games until "
        "the stars came out}|It was the best party anyone could remember}. {And <f> kept the <gift> in "
        "<f.his> heart for ever|And <n> knew now that love is the best thing to put in a present|And <n> "
        "never worried about money again when <he> wanted to make somebody happy}.",
    ),
    want="<n> wanted to give <f> a special present.",
    problem="<n> had no money to buy <dream>.",
    solved="<n> made a <gift> for <f>, and <f> loved it.",
)

NEIGHBOUR = Plot(
    name="neighbour",
    themes=("a new friend", "meeting someone new", "not judging others", "a stranger"),
    about=("a new neighbour", "a stranger", "making friends with a <fkind>"),
    picks={
        "rumour": (
            {"rumour": "ate stones for breakfast", "truth": "baked the best bread in the world"},
            {"rumour": "could turn people into frogs", "truth": "kept tame frogs and loved them"},
            {"rumour": "never laughed", "truth": "knew the funniest jokes"},
            {"rumour": "stole things at night", "truth": "mended broken things and gave them back"},
            {"rumour": "growled at children", "truth": "was only humming, because <f.he> loved music"},
            {"rumour": "was as dangerous as a storm", "truth": "was afraid of spiders and very gentle"},
        ),
        "bring": (
            {"bring": "a basket of apples"},
            {"bring": "a pot of soup"},
            {"bring": "a bunch of flowers"},
            {"bring": "a plate of biscuits"},
            {"bring": "a jar of jam"},
            {"bring": "a warm pie"},
        ),
    },
    beats=(
        "<weather>, somebody new moved into the empty house {at the end of the road|on the hill|by the "
        "pond}. It was a <fkind> {named|called} <f>. {Nobody had ever met anyone like that|Everyone looked "
        "out of their windows|<f.He> came with only one small bag}.",
        '{Soon people began to talk|It was not long before the stories began}. "I heard that <f> '
        '<rumour>," said {one neighbour|the miller|the postman}. {Nobody said hello to <f>|Everyone '
        "crossed the road when <f> came|The children ran away}. {The curtains of the new house stayed "
        "closed|In the evening, a single light burned in the window}.",
        "{<n> was a little afraid too|<n> had heard the stories as well|At first <n> believed it}. {But "
        "one day <he> saw <f> sitting alone, and <f.he> looked sad|But then <n> heard somebody crying "
        'behind the curtains}. "{Has anyone asked <f> if it is true|How would I feel in a new '
        'place|Somebody should say hello}?" thought <n>.',
        "So <he> took <bring> and {walked up to the house|went to the door}. {<His> heart was beating "
        "fast|Twice <he> nearly turned back}. Knock, knock! {The door opened slowly|It creaked, and there "
        'stood <f>}. "{Hello|Good day}," said <n>. "{I am <n>, and this is for you|Welcome! I have brought '
        'you something}."',
        "{<f> was so surprised that <f.he> could not speak|<f>'s eyes grew big and wet|A smile spread over "
        "<f>'s face}. \"{You are the first one to visit me|Nobody has ever brought me anything|Please come "
        'in}," <f.he> said. {They sat down and began to talk|They talked until it was dark}. And <n> found '
        "out that <f> <truth>!",
        '{The next day <n> told everyone|<n> told all the neighbours about it}. {"Come and see for '
        'yourselves," <he> said|At first they did not believe <him>}. {One by one they came to visit|Soon '
        "there was a knock at <f>'s door every day|In the end they all came, with cakes and flowers}. "
        "{They were ashamed of their silly stories|And they all said sorry}.",
        "{Now <f> is never alone|Since then, <f>'s door is always open|Today nobody can imagine the place "
        "without <f>}. {And <n> has a friend for life|And all because <n> had knocked|You only know "
        "somebody when you have knocked at their door}.",
    ),
    want="<n> wanted to know what <f> was really like.",
    problem="People said that <f> <rumour>, and nobody talked to <f.him>.",
    solved="<n> visited <f> with <bring> and found out that <f.he> <truth>.",
)
