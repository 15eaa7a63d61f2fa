"""Plots of things to find out: a lost treasure, a strange noise, the way home."""

from demo.corpus.plots.plot import Plot

LOST = Plot(
    name="lost",
    themes=("losing something", "looking for something", "not giving up", "a lost treasure"),
    about=("a lost <item>", "a missing <item>", "a <item>"),
    picks={
        "item": (
            {
                "item": "red scarf",
                "why": "{<His> grandmother had knitted it|It kept <him> warm on cold days}",
            },
            {
                "item": "silver bell",
                "why": "{It rang as clearly as a bird|It had hung above <his> door for years}",
            },
            {
                "item": "blue button",
                "why": "{It was as round and shiny as a berry|It came from <his> favourite coat}",
            },
            {"item": "golden key", "why": "{It opened <his> front door|It opened a box full of letters}"},
            {"item": "wooden flute", "why": "{<He> played it every evening|<His> father had carved it}"},
            {
                "item": "picture book",
                "why": "{<He> read it every night before bed|It was full of ships and whales}",
            },
            {"item": "green hat", "why": "{It had a long feather in it|<He> wore it on every walk}"},
            {
                "item": "little lantern",
                "why": "{It shone like a small moon|<He> was never afraid of the dark with it}",
            },
            {"item": "toy boat", "why": "{It had a white sail|<He> had built it <himself>}"},
            {"item": "lucky stone", "why": "{It was smooth and warm|<He> had found it on <his> birthday}"},
            {"item": "striped umbrella", "why": "{It had kept <him> dry for years|It was as big as a tent}"},
            {"item": "music box", "why": "{It played a slow, sweet song|It had belonged to <his> mother}"},
            {
                "item": "pair of glasses",
                "why": "{Without them the world was a blur|<He> needed them for reading}",
            },
            {"item": "yellow kite", "why": "{It flew higher than any other kite|It had a tail of ribbons}"},
        )
    },
    beats=(
        "{<He> had one treasure, a <item>|Of all <his> things, <he> loved <his> <item> best|The thing <he> "
        "loved most in the world was a <item>}. <why>.",
        "<weather>, the <item> was gone. {<n> looked in every corner|<n> turned the whole place upside "
        "down|<n> looked high and low}, but {it was nowhere to be seen|there was no sign of it|<he> could "
        "not find it}.",
        '{"Oh no!" cried <n>. "Where can it be?"|"It must be somewhere," <n> told <himself>.|<n> felt like '
        "crying, but <he> took a deep breath instead.|<n> sat down and tried to remember where <he> had "
        "been the day before.}",
        "{First|To begin with}, <he> {went to look|looked|searched} <s1>. {There was only a {rusty "
        "nail|grey feather|broken cup|pile of leaves}|All <he> found was a {sleeping beetle|snail|wet "
        "leaf|piece of string}}. {Then|After that|Next} <he> {searched|looked} <s2>, but {the <item> was "
        "not there either|there was nothing there but dust|that was no use}.",
        '?{By now the sun was low|It began to rain|<His> feet were sore|<n> was tired and hungry}. {"I '
        'will look in one more place," <he> said.|<He> almost gave up, but <he> thought of the <item> and '
        "walked on.|Still, <he> did not want to stop.}",
        '{On the way home|Then|Just then|A little later} <he> met a <fkind> {named|called} <f>. {"Why do '
        'you look so sad?" asked <f>.|"What are you looking for?" <f> asked.|"Have you lost something?" '
        '<f> asked kindly.} {"I have lost my <item>," said <n>.|<n> told <f.him> about the <item>.}',
        '{"Two pairs of eyes see more than one," said <f>. "I will help you."|"Let us look together," said '
        '<f>.|"Think back," said <f>. "Where did you have it last?" <n> thought hard. "I had it when I was '
        'resting," <he> said slowly.|"I saw something strange <s3> this morning," said <f>. "Come and '
        'see!"}',
        "Together they {hurried|went|walked|ran} to look <s3>. {There, half hidden in the shadow|There, "
        "between two stones|There, shining in the light|There, covered with leaves}, lay the <item>! {A "
        "{magpie|mouse|little bird} had carried it there to make its nest pretty|The wind had blown it "
        "there|<n> had put it down there to tie <his> shoe and forgotten it|It must have slipped out of "
        "<his> bag}.",
        "{<n> laughed with joy and hugged <f>|<n> danced in a circle|<n> was so happy that <he> could not "
        'speak}. {"Thank you," <he> said. "I would never have found it alone."|"You are a true friend," '
        "<he> told <f>.}",
        "{From that day on|After that|Ever since}, <n> {always put the <item> in a safe place|took better "
        "care of <his> <item>|kept the <item> close}, {and <f> came to visit every week|and <he> and <f> "
        "were the best of friends|and whenever somebody lost something, <n> was the first to help}.",
    ),
    want="<n> wanted to find <his> <item>.",
    problem="<n> had lost <his> <item>.",
    solved="<f> helped <him> look, and they found the <item> <s3>.",
)

MYSTERY = Plot(
    name="mystery",
    themes=("a mystery", "a secret", "a strange noise", "being curious"),
    about=("a mystery", "<odd>", "a strange night"),
    picks={
        "odd": (
            {
                "odd": "a strange humming sound",
                "heard": "heard",
                "cause": "a baby bird that was trying to sing",
                "end": "{<n> taught it a real song|They listened, and in a week it sang better than anyone}",
            },
            {
                "odd": "a tiny light moving in the dark",
                "heard": "saw",
                "cause": "a firefly that was looking for its family",
                "end": "{They helped it find the other fireflies|It led them to a hundred other fireflies}",
            },
            {
                "odd": "a trail of small wet footprints",
                "heard": "found",
                "cause": "a young otter that was too shy to knock",
                "end": "{They invited it to supper|It came to play with them every day}",
            },
            {
                "odd": "a soft tapping sound",
                "heard": "heard",
                "cause": "a woodpecker that was building a new home",
                "end": "{They helped to carry the chips away|It invited them to its first supper}",
            },
            {
                "odd": "a strange blue glow",
                "heard": "saw",
                "cause": "a patch of shining mushrooms",
                "end": "{They sat down and looked at them until midnight|They named the place the Blue Lamp}",
            },
            {
                "odd": "a sad, hollow moan",
                "heard": "heard",
                "cause": "the wind in a empty bottle",
                "end": "{They blew into the bottle and made a funny tune|They laughed until their bellies "
                "hurt}",
            },
            {
                "odd": "a row of missing biscuits",
                "heard": "noticed",
                "cause": "a mouse with five hungry children",
                "end": "{They baked a second plate of biscuits, just for the mice|From then on there was a "
                "plate for everyone}",
            },
            {
                "odd": "a big round shadow on the wall",
                "heard": "saw",
                "cause": "a very small hedgehog in front of a lamp",
                "end": "{They made shadow animals until bedtime|The hedgehog was proud to look so big}",
            },
        )
    },
    beats=(
        "{One night|One evening|Late one night|One stormy night}, <n> <heard> <odd>. {It came from "
        "somewhere outside|It seemed to be quite near|Nobody else had noticed it}. {<n> pulled the blanket "
        "up to <his> chin|<n> held <his> breath|<n> sat up in bed}.",
        "{The next night it was there again|The night after, it happened again|It happened three nights in "
        'a row}. {"It is a ghost," said one neighbour. "It is a monster," said another.|Everyone had a '
        'idea, but nobody wanted to look.|"Stay inside," said <e>. "One never knows."}',
        '{But <n> was too curious|But <n> wanted to know|<n> could not sleep any more}. "{I will find out '
        'what it is|Tonight I will go and look|There must be a reason for it}," <he> {said|decided}. <He> '
        "asked <his> friend <f>, a <fkind>, to come along. {<f> was a little afraid, but <f.he> came|<f> "
        "brought a lamp and a stick|<f> said yes at once}.",
        "{They crept through the dark on tiptoe|Hand in hand they went out into the night|They tiptoed "
        "outside}. {A twig snapped|A owl called|The moon went behind a cloud}, and {they both jumped|<f> "
        "squeaked|<n> nearly ran home}. {But they went on|Still they went on}, step by step, {first <s1>, "
        "then <s2>|past the place <s1>}.",
        "{And there, <s3>, they found it|Then, <s3>, they saw what it was}. It was <cause>! {<n> began to "
        'laugh|"So that is the monster!" said <f>|They looked at each other and giggled}.',
        "<end>. {Nobody was afraid any more|And the mystery was solved|In the morning they told everyone "
        "the whole story}.",
        "{<n> had learned that {most scary things are small when you look at them|it is better to look "
        "than to guess|a question is braver than a fear}|And if <n> hears something odd at night now, <he> "
        "just smiles and goes to see|That night everyone slept in peace}.",
    ),
    want="<n> wanted to know what it was when <he> <heard> <odd>.",
    problem="<n> <heard> <odd>, and everyone was afraid.",
    solved="<n> and <f> went to look, and it was only <cause>.",
)

HOME = Plot(
    name="home",
    themes=("getting lost", "finding the way home", "being lost", "coming home"),
    about=("someone who gets lost", "the way home", "<lure>"),
    picks={
        "lure": (
            {"lure": "a orange butterfly"},
            {"lure": "a shiny green beetle"},
            {"lure": "a rolling hoop"},
            {"lure": "a floating feather"},
            {"lure": "a trail of sweet berries"},
            {"lure": "the sound of a drum"},
            {"lure": "a red balloon"},
            {"lure": "a dancing leaf"},
        ),
        "guide": (
            {
                "guide": "the brightest star",
                "lead": "{It always stands above my house|Grandmother showed it to me}",
            },
            {
                "guide": "the little stream",
                "lead": "{It flows right past my door|All water here runs past my home}",
            },
            {
                "guide": "the smell of fresh bread",
                "lead": "{That is my mother's bread|I would know that smell anywhere}",
            },
            {"guide": "the sound of the bell", "lead": "{It rings every evening at home|I know that bell}"},
            {
                "guide": "the smoke above the trees",
                "lead": "{That must be our chimney|Someone has lit a fire at home}",
            },
            {
                "guide": "the tall tower",
                "lead": "{I can see it from my window|It stands right behind my house}",
            },
        ),
    },
    beats=(
        "<weather>, <n> saw <lure>. {It was so lovely that <he> ran after it|<He> had never seen such a "
        'thing, so <he> followed it|"Wait for me!" <he> called, and ran after it}. {It went this way and '
        "that way|Over the hill it went, and down the other side|On and on it went}.",
        "{When <he> looked up|After a while <he> stopped, and}, {everything looked strange|nothing looked "
        "the way it should|<he> did not know where <he> was}. {The trees were tall and dark|The path was "
        'gone|There was not a house to be seen}. {"I am lost," said <n> in a small voice|A tear ran down '
        "<his> cheek|<n> felt very small}.",
        "{<He> called for help, but only the wind answered|<He> tried one path, but it ended in a swamp. "
        "<He> tried another, but it went in a circle|<He> sat down on a stone and tried to think}. {The "
        "sun sank lower and lower|It was getting cold|Somewhere a owl began to hoot}.",
        '{"Who is crying here?" asked a voice|Then something moved in the bushes|Then <he> heard soft '
        'steps}. It was a <fkind> {called|named} <f>. {<n> told <f.him> what had happened|"I cannot find '
        'my way home," said <n>}. "{Do not worry|Do not be afraid|Dry your tears}," said <f>. "{When I am '
        "lost, I stop and look and listen.|Let us think of something that you know.|What can you see from "
        'your home?}"',
        "{<n> closed <his> eyes and thought|<n> wiped <his> nose and looked around|<n> turned slowly in a "
        'circle}. Then <he> noticed <guide>. "<lead>!" <he> cried. "{Now I know the way|We only have to '
        'follow it|Then home is not far}!"',
        "So they followed <guide>, {over stones and roots|through the tall grass|up the hill and down "
        "again}, {and <f> held <his> hand|and <f> told jokes to make <him> laugh|and the dark was not so "
        "dark with two}.",
        "{At last <he> saw a light in a window|And there, at last, was <his> own front door|Then <n> heard "
        'someone call <his> name}. {<His> family ran out and hugged <him> tight|"There you are!" cried '
        "<his> mother, and hugged <him>|<E> stood at the gate with a lamp}. {There was hot soup for <n>, "
        "and for <f> too|They gave <f> the best chair and a big piece of cake}.",
        "{From then on, <n> always looked where <he> was going|Since then <n> never runs after anything "
        "without telling someone first|After that, <n> often visited <f>, but <he> always took the path}. "
        "{And every evening, <he> looked at <guide> and smiled|And that was a good thing|Home is the best "
        "place of all}.",
    ),
    want="<n> wanted to find the way home.",
    problem="<n> followed <lure> and got lost.",
    solved="With <f>'s help, <n> followed <guide> and came home.",
)
