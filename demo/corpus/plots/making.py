"""Plots of patience: a skill to learn, a seed to grow, a thing to build."""

from demo.corpus.plots.plot import Plot

LEARN = Plot(
    name="learn",
    themes=("practice", "learning something new", "never giving up", "trying again", "patience"),
    about=("someone who wants to <skill>", "learning to <skill>"),
    picks={
        "skill": (
            {
                "skill": "swim",
                "fail": "{<he> sank like a stone|<he> swallowed half of the lake}",
                "tip": "Lie on your back and breathe",
                "show": "swam all the way across the lake",
            },
            {
                "skill": "whistle",
                "fail": "{only air came out|it sounded like a leaky kettle}",
                "tip": "Make your lips as small as a pea",
                "show": "whistled a tune that made the birds stop and listen",
            },
            {
                "skill": "dance",
                "fail": "{<he> tripped over <his> own feet|<he> stepped on everyone's toes}",
                "tip": "Do not look at your feet, listen to the music",
                "show": "danced until the candles burned low",
            },
            {
                "skill": "juggle",
                "fail": "{the balls rolled under the cupboard|one ball landed in the soup}",
                "tip": "Start with one ball, then take two",
                "show": "juggled five apples and caught every one",
            },
            {
                "skill": "bake bread",
                "fail": "{the bread was as hard as a brick|the bread was as flat as a plate}",
                "tip": "Give the dough time to rest",
                "show": "baked a loaf so good that nobody left a crumb",
            },
            {
                "skill": "play the violin",
                "fail": "{it sounded like a cat with a cold|a string broke with a twang}",
                "tip": "Play one slow note until it is beautiful",
                "show": "played a song that made everyone go quiet",
            },
            {
                "skill": "ride a bicycle",
                "fail": "{<he> landed in a bush|<he> rolled straight into the duck pond}",
                "tip": "Look ahead and not down",
                "show": "rode all the way around the square without falling",
            },
            {
                "skill": "read",
                "fail": "{the letters danced before <his> eyes|<he> mixed up all the letters}",
                "tip": "Take one letter at a time",
                "show": "read a whole story aloud to everyone",
            },
            {
                "skill": "skate",
                "fail": "{<he> sat down hard on the ice|<his> legs went in two directions}",
                "tip": "Bend your knees and lean forward",
                "show": "skated a perfect circle",
            },
            {
                "skill": "paint",
                "fail": "{<his> horse looked like a potato|the paint ran down to <his> elbows}",
                "tip": "Look twice before you paint once",
                "show": "painted a picture that hung in the town hall",
            },
            {
                "skill": "sing",
                "fail": "{<his> voice cracked|everyone covered their ears}",
                "tip": "Sing as if nobody was listening",
                "show": "sang so sweetly that even the wind was still",
            },
        )
    },
    beats=(
        "{More than anything, <n> wanted to <skill>|<n> had a big dream: <he> wanted to <skill>|There was "
        "one thing <n> could not do, and that was to <skill>}. {But it looked so hard|Everyone else seemed "
        "to know how|<He> thought about it all day long}.",
        "<weather>, <he> tried it for the first time. {Oh dear|Well}! {It did not go well|It was a "
        'disaster}: <fail>. {Some of the others laughed|"Maybe it is not for you," said somebody|<n> '
        "turned red up to <his> ears}.",
        "{The second time was no better|<He> tried again the next day, and it was even worse|<He> tried "
        'again and again, but nothing seemed to help}. {"I will never learn it," said <n>, and sat down '
        "<s1>|<n> hid <s1> and cried a little|<n> wanted to give up}.",
        '{There a <fkind> {named|called} <f> found <him>|There sat <f>, a <fkind>}. {"Do you know how '
        'often I fell before I could do it?" asked <f>. "A hundred times!"|"Nobody can do it the first '
        'time," said <f>.|"I can see that you are trying hard," said <f>. "May I tell you a secret?"} '
        '"<tip>. {And then try again|Then do it once more|And practise every day}."',
        "{So <n> practised every day|Every morning and every evening, <n> practised}. {On Monday it went "
        "badly. On Tuesday it went a little better|The first week was hard, the second was easier|Some "
        "days were good and some days were bad}, {but <he> did not stop|and <f> was always there to "
        "cheer|and <he> remembered what <f> had said}.",
        "{Then came the day of the {summer|spring|harvest|winter} {fair|festival|party}|At the "
        "{summer|spring|harvest|winter} festival, everyone came together}. {<n> was nervous|<n>'s heart "
        "was beating fast}, but <f> {nodded at <him>|smiled and nodded|whispered something kind}. And then "
        "<n> <show>.",
        "{Everyone clapped and cheered|For a moment it was quiet, and then everybody cheered|Nobody "
        'laughed this time}. {"How did you learn that?" they asked. "I fell down and got up again," said '
        '<n>.|"You did it!" cried <f>.|<n> bowed, and <f> clapped the loudest of all.}',
        '{And the next day, <n> found a little {mouse|rabbit|hedgehog} who wanted to <skill> as well. "Sit '
        'down," said <n> with a smile. "I will show you."|Since then, <n> has never been afraid of trying '
        "something new.|<n> never forgot that every master was once a beginner.}",
    ),
    want="<n> wanted to learn to <skill>.",
    problem="At first <n> could not <skill> at all.",
    solved="<f> gave <him> good advice, and <n> practised every day.",
)

GARDEN = Plot(
    name="garden",
    themes=("patience", "a garden", "plants", "growing something", "spring"),
    about=("a seed", "a garden", "a <plant>", "growing a <plant>"),
    picks={
        "plant": (
            {
                "plant": "sunflower",
                "big": "taller than the house",
                "use": "{The birds came to eat its seeds|Bees came from far and wide}",
            },
            {
                "plant": "pumpkin",
                "big": "as big as a cart",
                "use": "{There was pumpkin soup for everyone|They made soup and a lantern out of it}",
            },
            {
                "plant": "apple tree",
                "big": "full of red apples",
                "use": "{There were apples for everyone|They baked a dozen apple pies}",
            },
            {
                "plant": "rose bush",
                "big": "covered with red roses",
                "use": "{Everyone got a rose for their window|The whole place smelled of roses}",
            },
            {
                "plant": "beanstalk",
                "big": "up to the roof",
                "use": "{There was a big pot of beans for everyone|The children climbed it like a ladder}",
            },
            {
                "plant": "cherry tree",
                "big": "white with blossom",
                "use": "{In summer there were cherries for everyone|Everyone came to sit under it}",
            },
            {
                "plant": "strawberry plant",
                "big": "full of red berries",
                "use": "{They ate strawberries with cream|Everyone got a bowl of berries}",
            },
        ),
        "harm": (
            {
                "harm": "the rain stopped, and the earth turned dry",
                "save": "carried water from the river, one bucket at a time",
            },
            {"harm": "a cold night came, with frost", "save": "wrapped it in <his> own warm blanket"},
            {
                "harm": "a flock of crows came to eat it",
                "save": "built a scarecrow out of a old coat and a hat",
            },
            {
                "harm": "a great storm bent it to the ground",
                "save": "tied it to a strong stick and held it all night long",
            },
            {
                "harm": "hungry snails came in the night",
                "save": "carried the snails away, one by one, to a meadow",
            },
            {"harm": "weeds grew all around it", "save": "pulled out the weeds until <his> hands were green"},
        ),
    },
    beats=(
        '<weather>, <e> gave <n> a {tiny brown|small round|little black} seed. {"Take good care of it," '
        'said <e>. "It needs time."|"What will it be?" asked <n>. "Wait and see," said <e>.|"There is '
        'something big inside," said <e>.}',
        "{<n> dug a little hole <s1> and put the seed in|<n> planted it <s1>, where the sun was warm}. "
        '{<He> gave it some water and sat down to wait|Every morning <he> came to look|"Grow well," <he> '
        "whispered}.",
        "{The first day, nothing happened. The second day, nothing happened|A week went by, and there was "
        'only earth}. {"It is just a bit of dirt," said <f>, a <fkind> who lived nearby.|<f>, the <fkind> '
        'next door, laughed. "Are you watching the ground?" <f.he> asked.} "{It only needs time|You will '
        'see|I can wait}," said <n>.',
        "{Then, one morning, there was a tiny green leaf|At last a small green tip came out of the earth}! "
        "{<n> jumped for joy|<n> was so happy that <he> sang it a song|Even <f> had to smile}. {It grew a "
        "little every day|Every day there was a new leaf}.",
        '{But then|But one day} <harm>. {"Oh no, my plant!" cried <n>|The poor plant hung its head|<n> was '
        "afraid that it would die}. {<He> did not give up|There was only one thing to do}: <he> <save>. "
        "{And <f> came to help <him>|When <f> saw that, <f.he> came to help|This time <f> did not laugh, "
        "but helped}.",
        "{Summer came|The weeks passed|The days grew long and warm}, and the seed became a <plant>, <big>! "
        "{Nobody had ever seen anything like it|People came from far away to look|<n> had to lean back to "
        "see it all}. <use>.",
        '{"I should have believed you," said <f>.|"How did you do that?" asked <f>. "I waited," said <n>, '
        '"and I did not stop caring."|"Good things need time," said <e>, and winked.} {In autumn, <n> gave '
        "<f> a little seed of <f.his> own|And next spring they planted two|And <n> kept one seed for the "
        "next year}.",
    ),
    want="<n> wanted the seed to grow.",
    problem="When the plant was still small, <harm>.",
    solved="<n> <save>, and the seed became a <plant>.",
)

BUILD = Plot(
    name="build",
    themes=("building something", "teamwork", "working together", "a good idea"),
    about=("building a <work>", "a <work>", "teamwork"),
    picks={
        "work": (
            {
                "work": "tree house",
                "fails": "the floor fell down with a bang",
                "use": "{watch the stars from up there|have a place of their own}",
                "last": "slept in the tree house and listened to the wind",
            },
            {
                "work": "raft",
                "fails": "it sank in the middle of the pond",
                "use": "{float down the river|visit the little island}",
                "last": "floated down the river and waved at everyone",
            },
            {
                "work": "bridge",
                "fails": "the water carried it away",
                "use": "{visit the other side|cross the stream with dry feet}",
                "last": "walked over the bridge with dry feet",
            },
            {
                "work": "snow castle",
                "fails": "one wall tipped over",
                "use": "{have a castle of ice|play kings and queens}",
                "last": "drank hot cocoa in the snow castle",
            },
            {
                "work": "flying machine",
                "fails": "it hopped like a frog and fell to pieces",
                "use": "{see the clouds from above|fly over the roofs}",
                "last": "flew over the roofs, slowly and a bit crooked",
            },
            {
                "work": "windmill",
                "fails": "the first wind blew it over",
                "use": "{grind flour|pump water}",
                "last": "watched the sails turn round and round",
            },
            {
                "work": "cart",
                "fails": "a wheel came off and rolled down the hill",
                "use": "{carry wood|ride down the hill}",
                "last": "rode down the hill, shouting with joy",
            },
        )
    },
    beats=(
        "<weather>, <n> had a great idea: <he> would build a <work>! {Then <he> could <use>|Nobody had "
        "ever done that here|<He> had dreamed of it for a long time}. {<He> found some old boards and a "
        "hammer|<He> gathered wood and rope and drew a plan|<He> rolled up <his> sleeves and began}.",
        '"{May I help you|Can I help|Do you need a hand}?" asked <f>, a <fkind> who {was passing by|lived '
        'nearby}. "{No, thank you, I can do it alone|No, this is my idea|I do not need any help}," said '
        "<n>. {<f> went away and was a little sad|So <f> sat down and just watched}.",
        "{<n> worked the whole day|All day long there was hammering and sawing}. {In the evening the "
        "<work> was ready|At last it was done}. But {when <he> tried it out|as soon as <he> stepped back "
        'to look}, <fails>! {<n> was furious|<n> sat among the pieces and nearly cried|"That cannot be '
        'true," said <n>}.',
        "{The next day <he> tried again, but it went wrong again|<He> tried it once more, and the same "
        'thing happened}. {"The ropes are too thin," said a quiet voice.|"I think the wood is too short," '
        'said somebody.|"May I say something?" asked a voice behind <him>.} It was <f>. {This time <n> '
        'listened|<n> scratched <his> head|"Do you know how to do it better?" asked <n>}.',
        '"{Let us do it together|I have a idea|Four hands are better than two}," said <f>. {<f> knew a lot '
        "about knots, and <n> was good with a hammer|<n> held the boards, and <f> tied the ropes|<f> drew "
        "a new plan in the sand}. {Soon others came to help as well|They worked side by side and sang|Even "
        "<e> came and brought some nails}.",
        "{By evening, the <work> was finished, and it was strong|And this time it held|Two days later it "
        'was done}. {Everyone cheered|"We did it!" cried <n> and <f>|They shook it, and nothing fell off}. '
        "{That same night|The very next day}, they <last>.",
        '"{I am sorry that I sent you away|I should have said yes the first time|Thank you for not giving '
        'up on me}," said <n>. {<f> only smiled|"Never mind," said <f>|"What shall we build next?" asked '
        "<f>}. {Alone you can do a lot, but together you can do more|Since then, they build everything "
        "together|And on the door they wrote two names: <n> and <f>}.",
    ),
    want="<n> wanted to build a <work>.",
    problem="<n> tried to do it alone, and <fails>.",
    solved="<n> let <f> help, and together they finished the <work>.",
)
