"""Plots of the road: a dream far away, a parcel to deliver, a map to follow."""

from demo.corpus.plots.plot import Plot

JOURNEY = Plot(
    name="journey",
    themes=("an adventure", "a long journey", "following a dream", "a adventure"),
    about=("<goalname>", "a journey to <goalname>", "<obstacle>"),
    picks={
        "goal": (
            {
                "goal": "see the sea",
                "goalname": "the sea",
                "sight": "{The sea was bigger than anything <he> had ever seen|Blue water sparkled all the "
                "way to the sky}",
            },
            {
                "goal": "see the snow on the highest mountain",
                "goalname": "the snow",
                "sight": "{The snow was soft and bright, and it crunched under <his> feet|Everything was "
                "white and still}",
            },
            {
                "goal": "visit the moon garden, where flowers open at night",
                "goalname": "the moon garden",
                "sight": "{A thousand white flowers opened in the moonlight|The whole garden glowed like "
                "silver}",
            },
            {
                "goal": "hear the singing cave",
                "goalname": "the singing cave",
                "sight": "{The wind blew through the cave and made a deep, lovely song|The cave hummed "
                "like a giant flute}",
            },
            {
                "goal": "find the end of the rainbow",
                "goalname": "the rainbow",
                "sight": "{Where the rainbow ended, the grass shone in seven colours|Colours danced on the "
                "wet stones}",
            },
            {
                "goal": "look down from the top of the tall hill",
                "goalname": "the tall hill",
                "sight": "{From the top <he> could see every house and every tree|The whole world lay "
                "below like a map}",
            },
            {
                "goal": "see the city of lights",
                "goalname": "the city of lights",
                "sight": "{Lamps in every colour shone from every window|The streets glittered as if stars "
                "had fallen}",
            },
            {
                "goal": "taste the famous honey cake in the next town",
                "goalname": "a honey cake",
                "sight": "{The cake was warm and sweet and tasted of summer|One bite of the cake made "
                "<him> smile}",
            },
            {
                "goal": "meet the oldest tree in the world",
                "goalname": "the oldest tree",
                "sight": "{The tree was as wide as a house, and its leaves whispered|The tree reached up "
                "into the clouds}",
            },
            {
                "goal": "watch the sun rise over the desert",
                "goalname": "the sunrise",
                "sight": "{The sky turned pink, then orange, then gold|The first light ran over the sand "
                "like water}",
            },
        ),
        "obstacle": (
            {
                "obstacle": "a wide river",
                "stuck": "{There was no bridge, and the water was deep|The water rushed and foamed}",
                "help": "{<f.He> pushed a fallen log across the water|<f.He> knew a place with stepping "
                "stones}",
                "past": "{They balanced across, one careful step after the other|In a moment they were on "
                "the other side}",
            },
            {
                "obstacle": "a dark wood",
                "stuck": "{The trees stood so close that no light came in|Every path looked the same}",
                "help": "{<f.He> marked the trees with white chalk|<f.He> followed the sound of a little "
                "stream}",
                "past": "{Soon they saw daylight between the trees|Before long the dark wood lay behind "
                "them}",
            },
            {
                "obstacle": "a high wall",
                "stuck": "{It was too high to climb|There was no gate anywhere}",
                "help": "{<f.He> found a small hole behind the ivy|<f.He> let <n> climb up on <f.his> "
                "shoulders}",
                "past": "{With a wriggle and a push they were through|In a moment they were on the other "
                "side}",
            },
            {
                "obstacle": "a thick fog",
                "stuck": "{<n> could not even see <his> own feet|The whole world had turned grey}",
                "help": "{<f.He> rang a little bell so that they would not lose each other|<f.He> carried "
                "a bright lantern}",
                "past": "{Step by step they found the way|After a while the fog lifted like a curtain}",
            },
            {
                "obstacle": "a broken bridge",
                "stuck": "{Half of the planks were gone|It swayed in the wind like a swing}",
                "help": "{<f.He> had a long rope in <f.his> bag|<f.He> knew how to mend it with branches}",
                "past": "{They crossed slowly and did not look down|They held hands and crossed together}",
            },
            {
                "obstacle": "a field of thorns",
                "stuck": "{The thorns were as long as needles|Nobody could walk through it}",
                "help": "{<f.He> showed <him> a secret tunnel|<f.He> held the branches back with a stick}",
                "past": "{They came out with only a scratch or two|Bit by bit they reached the other side}",
            },
            {
                "obstacle": "a steep cliff",
                "stuck": "{The stones were wet and slippery|It went straight up into the sky}",
                "help": "{<f.He> knew an old stair cut into the rock|<f.He> tied a rope to a strong tree}",
                "past": "{Slowly, slowly they climbed to the top|They pulled each other up, laughing}",
            },
        ),
    },
    beats=(
        "{<He> had one great wish|There was one thing <he> dreamed of|Every night <he> had the same "
        "dream}: <he> wanted to <goal>. {Everyone said it was too far|<His> friends said it was only a "
        "dream|Nobody <he> knew had ever been there}.",
        "<weather>, <n> {packed {some bread and cheese|a apple and a warm blanket|three nuts and a bottle "
        "of water|a map and a sandwich} and set off|put on <his> {boots|coat|hat} and set out|said goodbye "
        'to <e> and left}. {"I will be back soon," <he> said.|<He> sang as <he> walked.|The road was long, '
        "but <his> heart was light.}",
        "?{On the first day, <he> walked until <his> legs were tired|<He> walked past {fields and "
        "farms|ponds and meadows|hills and mills}|<He> slept under the stars and ate berries from the "
        "bushes}. {Birds sang in the trees|The wind smelled of grass and rain|Clouds sailed across the sky "
        "like ships}.",
        "{Then|But then|After a long walk|On the second day} <he> came to <obstacle>. <stuck>. {<n> sat "
        'down and sighed|<n> did not know what to do|"Now what?" <he> said}.',
        "{Along came|Just then <he> met|Out of the grass stepped|Soon <he> met} a <fkind> {called|named} "
        '<f>. {"Where are you going?" asked <f>.|"Are you stuck?" asked <f>.|"You look as if you need '
        'help," said <f>.} {"I want to <goal>," said <n>.|<n> told <f.him> about <his> wish.}',
        '{"I have always wanted to see that too," said <f>. "Let us go together."|"Then I will help you," '
        'said <f>.|"That sounds wonderful," said <f>. "May I come with you?"} <help>. <past>.',
        "?{In the evening they shared a {loaf of bread|bag of cherries|pot of soup|piece of cheese}|That "
        "night they told each other stories|They walked on side by side and sang}. {The way did not feel "
        "so long any more|It is easier to walk with a friend|Neither of them was lonely}.",
        "{At last|In the end|Finally|On the third day}, they arrived. <sight>. {<n> stood there and could "
        'not say a word|"It is even better than my dream," whispered <n>|<n> wished the moment would never '
        "end}.",
        "{When they came home, everyone wanted to hear the story|They stayed until {the stars came "
        "out|evening|the next day}, and then they walked home together|They went home slowly, for they had "
        "much to talk about}. {<n> had seen what <he> wanted to see, and <he> had found a friend as "
        "well|And <n> knew that the best part of the journey had been <f>|<n> never forgot that day, and "
        "neither did <f>}.",
    ),
    want="<n> wanted to <goal>.",
    problem="<n> came to <obstacle> and could not go on.",
    solved="<f> helped <him>, and they arrived together.",
)

DELIVERY = Plot(
    name="delivery",
    themes=("keeping a promise", "doing a job well", "a important task"),
    about=("a <parcel>", "a letter", "bringing a <parcel> to someone"),
    picks={
        "parcel": (
            {"parcel": "letter", "inside": "a invitation to a wedding"},
            {"parcel": "basket of eggs", "inside": "twelve eggs for a very big cake"},
            {"parcel": "bottle of medicine", "inside": "medicine for a bad cough"},
            {"parcel": "heavy parcel", "inside": "a new bell for the school"},
            {"parcel": "jar of honey", "inside": "honey for a sore throat"},
            {"parcel": "small box", "inside": "a ring that had been mended"},
            {"parcel": "pot of soup", "inside": "hot soup for somebody who was ill"},
            {"parcel": "birthday cake", "inside": "a cake with seven candles"},
        ),
        "trouble": (
            {
                "trouble": "a goat blocked the road and would not move",
                "fix": "{<n> scratched it behind the ears, and it stepped aside|<n> picked some clover and "
                "led it away}",
            },
            {
                "trouble": "the wind grew so strong that <he> could hardly stand",
                "fix": "{<He> held on to the fence and went on, post by post|<He> waited behind a wall "
                "until it was calm}",
            },
            {
                "trouble": "the rain turned the path into mud",
                "fix": "{<He> laid branches on the mud and walked over them|<He> took off <his> shoes and "
                "went on}",
            },
            {
                "trouble": "<he> took a wrong turn and got lost",
                "fix": "{<He> listened for the church bell and followed the sound|<He> asked a old "
                "shepherd for the way}",
            },
            {
                "trouble": "a pack of geese hissed at <him>",
                "fix": "{<He> gave them some bread from <his> pocket|<He> bowed politely, and the geese "
                "were so surprised that they let <him> pass}",
            },
            {
                "trouble": "night fell before <he> was there",
                "fix": "{The fireflies lit the way for <him>|<He> followed the brightest star}",
            },
        ),
    },
    beats=(
        "{Everybody knew that <n> kept <his> promises|<n> was not big or strong, but everyone trusted "
        "<him>|<n> liked nothing better than being useful}.",
        '<weather>, <e> came to <his> door with a <parcel>. {"Can you take this to <f>, please?" asked '
        '<e>. "It must be there before {tonight|dark|supper}."|"<f> is waiting for this," said <e>. "Will '
        'you carry it there for me?"} {It was <inside>|Inside was <inside>}. <f> was a <fkind> who lived '
        "{on the other side of the hill|far away, beyond the fields|at the end of the long road}.",
        '{"You can count on me," said <n>|"I promise," said <n>|<n> nodded proudly}. <He> took the '
        "<parcel> and set off {at once|down the road|with quick steps}.",
        "{At first all went well|For a while the way was easy|The sun shone, and <he> whistled a tune}. "
        '{But then|Then, all of a sudden,|Halfway there,} <trouble>. {"I must not give up," thought '
        '<n>|<n> thought of <his> promise|"What shall I do now?" <n> wondered}. <fix>.',
        '?{A little later <he> met some friends who were playing a game. "Come and play with us!" they '
        'called. "Later," said <n>. "First I have to do something important."|A {squirrel|magpie|hare} '
        'asked what <he> was carrying. "A promise," said <n>, and walked on.}',
        "{At last|Just in time|As the first star came out}, <n> knocked at <f>'s door. {<f> opened it and "
        'smiled from ear to ear|"You came!" cried <f>|<f> could hardly believe it}. "{I had almost stopped '
        'hoping|I was so worried|You must be very tired}," <f.he> said. "{Come in and get warm|Sit down by '
        'the fire|Have some tea}!"',
        "{They sat together and {drank hot chocolate|ate buttered toast|had a big supper}|<f> gave <him> a "
        "{warm bun|slice of pie|cup of cocoa} and a soft chair}, and <n> told <f.him> about <his> long "
        "way.",
        '{When <n> came home, <e> was waiting. "I knew you could do it," <e> said.|The next day everyone '
        "heard about it, and they were proud of <him>.} {A promise is a promise, and <n> had kept "
        "<his>|<n> slept very well that night|And <n> was proud too, but only a little}.",
    ),
    want="<n> wanted to bring the <parcel> to <f>.",
    problem="On the way, <trouble>.",
    solved="<n> did not give up and brought the <parcel> to <f> in time.",
)

MAP = Plot(
    name="map",
    themes=("a treasure", "a treasure map", "a treasure hunt", "sharing"),
    about=("a map", "a old map", "a hidden treasure", "treasure"),
    picks={
        "treasure": (
            {
                "treasure": "a chest full of books",
                "share": "{They read the first one aloud until the moon came up|They opened a library for "
                "everyone}",
            },
            {
                "treasure": "a bench with the finest view in the world",
                "share": "{They sat down and watched the sun set|They came back every Sunday}",
            },
            {
                "treasure": "a box of seeds",
                "share": "{They planted them all, and soon there were flowers everywhere|By summer "
                "everyone had tomatoes and beans}",
            },
            {
                "treasure": "a bag of golden coins",
                "share": "{They bought new shoes for every child they knew|They used the coins to mend the "
                "old bridge}",
            },
            {
                "treasure": "a old violin",
                "share": "{<f> learned to play it, and <n> learned to dance|That evening there was music "
                "for the first time in years}",
            },
            {
                "treasure": "a spring with the clearest water",
                "share": "{They told everyone, and nobody was thirsty again|They drank and laughed and "
                "splashed}",
            },
            {
                "treasure": "a chest of silver spoons",
                "share": "{They gave one to every neighbour|They invited everyone to eat soup with them}",
            },
            {
                "treasure": "a tree full of golden pears",
                "share": "{They filled their baskets and gave pears to everyone|They baked the best pie of "
                "the year}",
            },
        ),
        "found": (
            {"found": "in a old book"},
            {"found": "inside a green bottle"},
            {"found": "under a loose floorboard"},
            {"found": "in the pocket of a old coat"},
            {"found": "behind a picture on the wall"},
            {"found": "at the bottom of a drawer"},
            {"found": "in a hollow tree"},
        ),
        "clue": (
            {
                "clue": "Walk one hundred steps to the north",
                "hard": "{<n> lost count twice and had to begin again|<n> counted aloud while <f> kept the "
                "map dry}",
            },
            {
                "clue": "Follow the stream until it sings",
                "hard": "{They walked and listened, walked and listened, until the water splashed over the "
                "stones like music|They found a waterfall that sang all day long}",
            },
            {
                "clue": "Look where the shadow points at noon",
                "hard": "{They had to wait until the sun stood high|<f> fell asleep while they waited, and "
                "<n> had to wake <f.him>}",
            },
            {
                "clue": "Ask the one who never sleeps",
                "hard": '{"Who never sleeps?" asked <n>. "The river!" cried <f>, and so they went to the '
                "river|They thought for a long time, until they heard the old clock ticking}",
            },
            {
                "clue": "Count the seven stones and turn left",
                "hard": "{They found six stones and nearly gave up, but the seventh was hiding under the "
                "moss|The stones were slippery, and <n> fell into a puddle}",
            },
        ),
    },
    beats=(
        "<weather>, <n> found {something strange|a piece of yellow paper|a folded paper} <found>. {It was "
        "a map|It was a old map}, {and in the middle there was a red cross|with a red cross on it|drawn in "
        'brown ink}! {"A treasure map!" <n> whispered|<His> heart began to beat faster|<n> read it three '
        "times}.",
        "{<He> ran to <his> friend <f>, a <fkind>|<He> showed it to <his> friend <f>, a <fkind>} who {knew "
        'a lot about maps|was never afraid of anything|lived next door}. {"Let us go and look!" said '
        '<f>|"We shall be rich!" said <f>|"I will get my spade," said <f>}.',
        'On the map it said: "<clue>." {So they did|That was not so easy|They set off at once}. <hard>.',
        "{They came to a place where {brambles|tall grass|a fallen tree} covered the path|Then the path "
        "ended at a {deep ditch|tall hedge|heap of stones}|Dark clouds came up and it began to rain}. "
        '{"Maybe we should go home," said <f>. "Not yet," said <n>. "We are nearly there."|"I am tired," '
        'said <n>. <f> took <his> hand. "Just a little further," <f.he> said.|They helped each other, and '
        "soon they could go on.}",
        "{Then they stood <s3>. This was the place with the red cross|At last they found the red cross: it "
        "was <s3>}. {They dug and dug|They looked under every stone|They pushed the leaves aside}, and "
        "there it was: <treasure>!",
        '{"It is better than gold," said <n>.|They looked at each other and laughed.|"I did not expect '
        'that," said <f>, and smiled.|For a moment they were both quite silent.} <share>.',
        "{And the map? They put it back where <n> had found it, for somebody else|<n> still has the map, "
        "and sometimes <he> looks at it and smiles|And if you ask <n>, <he> will tell you that a treasure "
        "is best when you share it|From then on, <n> and <f> went looking for treasure every summer}.",
    ),
    want="<n> wanted to find the treasure on the map.",
    problem="The way was hard, and the clues were difficult.",
    solved="<n> and <f> helped each other and found <treasure>.",
)
