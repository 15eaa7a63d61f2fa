"""Plots that take courage: a fear, a truth to tell, a race, a danger for all."""

from demo.corpus.plots.plot import Plot

FEAR = Plot(
    name="fear",
    themes=("being brave", "courage", "being afraid", "overcoming fear"),
    about=("someone who is afraid of <fear>", "being afraid of <fear>", "<fear>"),
    picks={
        "fear": (
            {
                "fear": "the dark",
                "why": "{At night <he> always kept a candle burning|Every shadow looked like a monster}",
                "need": "was trapped in the cellar, and the lamp had gone out",
                "act": "{took one step into the dark, and then another|felt <his> way along the wall in "
                "the dark}",
            },
            {
                "fear": "deep water",
                "why": "{<He> would not even step into a puddle|<He> always stayed far from the shore}",
                "need": "had fallen into the pond and could not swim",
                "act": "{jumped in and paddled as hard as <he> could|waded in up to <his> neck}",
            },
            {
                "fear": "thunder",
                "why": "{At the first rumble <he> hid under the bed|Every storm made <him> shake}",
                "need": "was outside, alone in the storm",
                "act": "{ran out into the storm|opened the door while the thunder crashed}",
            },
            {
                "fear": "high places",
                "why": "{Even a chair was too high for <him>|<He> felt dizzy on the second stair}",
                "need": "was stuck at the top of a tall tree",
                "act": "{climbed up, branch by branch|climbed higher than <he> had ever been}",
            },
            {
                "fear": "speaking in front of others",
                "why": "{<His> voice always got stuck|<His> face turned red at once}",
                "need": "was being blamed for something <f.he> had not done",
                "act": "{stood up in front of everyone and told the truth|climbed onto a chair and spoke, "
                "loud and clear}",
            },
            {
                "fear": "big dogs",
                "why": "{<He> crossed the street whenever <he> saw one|One bark made <him> jump}",
                "need": "could not get past a big barking dog",
                "act": "{walked up to the dog and held out a hand|stood still and spoke softly to the dog}",
            },
            {
                "fear": "the old bridge",
                "why": "{It creaked at every step|<He> always took the long way round}",
                "need": "was on the other side with a hurt leg",
                "act": "{stepped onto the bridge and did not stop|crossed the bridge plank by plank}",
            },
        )
    },
    beats=(
        "{There was only one problem|<n> was happy, except for one thing|Nobody knew <his> secret}: <n> "
        "was afraid of <fear>. <why>. {The others laughed at <him>, and that made it worse|<He> was "
        "ashamed of it|<He> wished that <he> was braver}.",
        '?"{Everyone is afraid of something|Being brave does not mean having no fear|A brave heart can '
        'beat very fast}," said <e> one day. "{It means doing the right thing all the same|You will be '
        'brave when you need to be|You will see}." {<n> was not so sure|But <n> shook <his> head|<n> '
        "thought about that for a long time}.",
        "{<n>'s best friend was a <fkind> {called|named} <f>|<n> had a good friend, a <fkind> "
        "{called|named} <f>}. <weather>, <n> heard <f> calling. {<He> ran to see what was wrong|It sounded "
        "like trouble}. <f> <need>! {There was nobody else who could help|There was no time to fetch "
        "anyone|Everyone else was far away}.",
        "{<n>'s heart beat like a drum|<His> knees shook|<n> felt cold all over}. {<He> wanted to run "
        "away|Everything in <him> said no}. {But then <he> thought of <f>|But <f> was <his> friend}. <n> "
        "{closed <his> eyes for a moment|took a deep breath|counted to three}, and then <he> <act>.",
        '{It was not half as bad as <he> had thought|With every moment it became a little easier|"Do not '
        'worry, <f>, I am coming!" <he> called}. {Soon <f> was safe|And a little later <f> was safe and '
        "sound|At last <f> was safe}.",
        '{"You did it!" cried <f>. "You are the bravest friend in the world!"|<f> hugged <him>. "Were you '
        'not afraid?" <f.he> asked. "Yes, I was," said <n>. "But I did it anyway."|"I was so afraid," said '
        '<n>. "I know," said <f>. "That is why it was so brave."}',
        "{Since then, <n> is still a little afraid of <fear>, but it does not stop <him> any more|After "
        "that, <fear> never seemed so terrible again|From that day on, nobody laughed at <n> any more}. "
        "{And when somebody else is afraid, <he> holds their hand|And that night <he> slept like a log|And "
        "<n> smiled, because <he> knew now how brave <he> was}.",
    ),
    want="<n> wanted to be brave and help <f>.",
    problem="<n> was afraid of <fear>, and <f> <need>.",
    solved="<n> was brave and saved <f>.",
)

TRUTH = Plot(
    name="truth",
    themes=("honesty", "telling the truth", "a mistake", "forgiveness"),
    about=("a broken <thing>", "telling the truth", "a mistake"),
    picks={
        "thing": (
            {
                "thing": "blue vase",
                "how": "{ran through the room and bumped into the table|threw a ball indoors}",
                "mend": "glued the pieces together, and it looked almost new",
            },
            {
                "thing": "window",
                "how": "{kicked a ball too hard|threw a snowball too high}",
                "mend": "put in new glass and painted the frame",
            },
            {
                "thing": "old clock",
                "how": "{wanted to see how it worked|pushed the hands round and round}",
                "mend": "put every little wheel back in its place",
            },
            {
                "thing": "music box",
                "how": "{wound it up too far|dropped it on the stairs}",
                "mend": "bent the spring back until it played again",
            },
            {
                "thing": "flower pot",
                "how": "{danced on the balcony|chased a fly across the shelf}",
                "mend": "planted the flower in a new pot",
            },
            {
                "thing": "wooden chair",
                "how": "{rocked on it too wildly|stood on it to reach the jam}",
                "mend": "carved a new leg for it",
            },
            {
                "thing": "favourite cup",
                "how": "{carried too many things at once|played tea party on the wall}",
                "mend": "made a new one out of clay",
            },
        )
    },
    beats=(
        "<weather>, <n> {was alone at home|was visiting <e>|was playing at the house of <e>}. {<He> knew "
        'that <he> should be careful|"Be careful with my things," <e> had said}. But <n> <how>, and crash! '
        "The <thing> of <e> was broken.",
        "{<n> stood quite still|<n> turned pale|<His> heart stopped for a moment}. {Nobody had seen "
        "it|There was nobody near}. Quickly, <he> {hid the pieces <s1>|swept up everything and hid "
        "it|covered it with a cloth} and {went outside as if nothing had happened|ran home}.",
        '{In the evening, <e> asked, "Who has broken my <thing>?"|Later <e> found out. "Do you know what '
        'happened to my <thing>?" <e.he> asked.} {"Maybe it was the wind," said <n>|"It must have been the '
        'cat," said <n>|<n> only shook <his> head}. {<His> ears turned hot|<He> could not look up}.',
        "{That night <n> could not sleep|At supper, <n> could not eat a bite|The lie sat in <his> belly "
        "like a stone}. {Everyone was kind to <him>, and that made it worse|Again and again <he> thought "
        'of the <thing>}. {<He> told <his> friend <f>, a <fkind>, about it. "What shall I do?" asked <n>. '
        '"You know what," said <f>.|<His> friend <f>, a <fkind>, looked at <him>. "Something is wrong," '
        'said <f>. "Tell the truth, and you will feel lighter."}',
        "{The next morning|Early in the morning|Right after breakfast}, <n> went to <e>. {<His> knees were "
        'shaking|<He> swallowed hard}. "It was me," <he> said. "I broke your <thing>, and then I told a '
        'lie. I am sorry."',
        "{<E> was silent for a while|<E> looked at <him> for a long time|For a moment it was very quiet}. "
        'Then <e.he> smiled. "{Thank you for telling me the truth|That was braver than you know|I am sad '
        'about the <thing>, but I am glad that you told me}," <e.he> said. "{Come, let us mend it '
        'together|We can fix it|Now let us see what we can do}."',
        "Together they <mend>. {It took the whole afternoon|It was hard work}, {and <n> learned a lot|but "
        "<n> did not mind|and they had a good time}. {A great weight had fallen from <his> heart|<n> felt "
        "as light as a feather}.",
        "{Since then, <n> tells the truth, even when it is hard|From then on, <n> was careful with other "
        "people's things, and with the truth|That night <n> slept better than ever}.",
    ),
    want="<n> wanted to feel better after telling a lie.",
    problem="<n> broke the <thing> of <e> and hid it.",
    solved="<n> told the truth, and together they mended it.",
)

RACE = Plot(
    name="race",
    themes=("a race", "winning and losing", "a contest", "sport"),
    about=("a race", "a contest", "a <race>"),
    picks={
        "race": (
            {"race": "boat race", "prize": "a silver cup"},
            {"race": "running race", "prize": "a golden ribbon"},
            {"race": "sledge race", "prize": "a warm coat"},
            {"race": "cake contest", "prize": "a golden spoon"},
            {"race": "kite contest", "prize": "a blue kite"},
            {"race": "cart race", "prize": "a shiny medal"},
            {"race": "swimming race", "prize": "a pearl"},
            {"race": "balloon race", "prize": "a crown of flowers"},
        ),
        "accident": (
            {
                "accident": "had hurt <f.his> leg",
                "aid": "{carried <f.him> on <his> back|put a bandage on the leg}",
            },
            {
                "accident": "was crying because everything had gone wrong",
                "aid": "{dried <f.his> tears and helped <f.him> to begin again|stayed and made <f.him> "
                "laugh}",
            },
            {
                "accident": "had got stuck in a ditch",
                "aid": "{pulled <f.him> out with all <his> strength|found a rope and pulled <f.him> out}",
            },
            {
                "accident": "had lost <f.his> shoe and could not go on",
                "aid": "{looked everywhere until the shoe was found|gave <f.him> one of <his> own}",
            },
            {
                "accident": "was sitting on the ground with a bump on <f.his> head",
                "aid": "{fetched cold water for the bump|helped <f.him> up and walked with <f.him>}",
            },
        ),
    },
    beats=(
        "{Once a year there was a great <race>|Every summer there was a <race>|That year there was going "
        'to be a big <race>}, and the prize was <prize>. {<n> wanted to win it more than anything|"This '
        'year I will win," said <n>|For weeks <n> thought of nothing else}.',
        "{<He> practised every morning|<He> got up before the sun to practise|Day after day <he> "
        'practised}. {<E> came to watch and shook <e.his> head. "Winning is not everything," said <e>|"You '
        'are getting better and better," said <e>}. The {strongest|fastest|best} of all was a <fkind> '
        "{named|called} <f>, {who had won last year|who never smiled at anyone}.",
        "{Then the great day came|At last the day was there}. {Flags were waving, and a band was "
        'playing|Everyone had come to watch}. "{Ready, steady, go|One, two, three, go}!" called <e>. {<n> '
        "did <his> best|<n> was off like the wind|At first <n> was near the end, but <he> got better and "
        "better}.",
        "{Soon only <f> was ahead of <him>|Halfway through, <n> was in second place, right behind <f>}. "
        '{"I can do it!" thought <n>|The prize was so near}. But then <n> saw that <f> <accident>. {Nobody '
        "else stopped|Everyone else just went on|The others did not even look}.",
        "{<n> looked at the finish, and <he> looked at <f>|For one moment <n> did not know what to do|It "
        'was <his> chance to win}. Then <he> {turned around|stopped|went back}. "{Let me help you|I am '
        'here|Do not worry}," said <n>, and <he> <aid>.',
        "{They were the last ones to arrive|When they finally arrived, somebody else had already won|Side "
        "by side they came in, very last of all}. {But everybody stood up and clapped|But the crowd "
        'cheered louder than for the winner}. "{Why did you stop|You could have won}?" asked <f>. "{You '
        'needed help|A prize is only a thing|Winning would not have been fun like that}," said <n>.',
        "{<f> smiled for the first time|<f> was quiet for a while, and then <f.he> took <n>'s hand}. {<n> "
        "did not get <prize>, but <he> got a friend|The prize went to somebody else, but <n> went home "
        "with a new friend}. {And that was worth much more|And the next year, they took part together|And "
        "nobody ever forgot that <race>}.",
    ),
    want="<n> wanted to win the <race>.",
    problem="During the <race>, <f> <accident>.",
    solved="<n> stopped to help <f>, lost the <race> and found a friend.",
)

STORM = Plot(
    name="storm",
    themes=("a clever idea", "saving others", "a hero", "a storm", "being small"),
    about=("a small hero", "<peril>", "someone small who saves everyone"),
    picks={
        "peril": (
            {
                "peril": "a terrible storm",
                "threat": "the roofs began to shake",
                "idea": "led everyone into the old cave, where it was dry and safe",
            },
            {
                "peril": "a great flood",
                "threat": "the water rose higher and higher",
                "idea": "showed everyone how to turn tables and tubs into boats",
            },
            {
                "peril": "a fire in the mill",
                "threat": "sparks flew towards the houses",
                "idea": "made everyone stand in a line and pass buckets of water along",
            },
            {
                "peril": "a long, dry summer",
                "threat": "the last well was empty",
                "idea": "followed the ants and found a hidden spring",
            },
            {
                "peril": "a hungry giant",
                "threat": "he wanted to eat all the bread in the land",
                "idea": "taught the giant how to bake his own bread",
            },
            {
                "peril": "a very cold winter",
                "threat": "there was hardly any wood left",
                "idea": "asked everyone to move into one big house and share one warm stove",
            },
            {
                "peril": "a thief in the night",
                "threat": "something was missing every morning",
                "idea": "hung little bells on every door",
            },
        )
    },
    beats=(
        "{<n> was the smallest of all|Nobody ever asked <n> for <his> opinion|Everyone thought that <n> "
        'was too small to be {useful|important}}. "{You are too little|Wait until you are bigger|Go and '
        'play}," {they always said|said the others}. {That made <n> sad|But <n> kept <his> eyes open and '
        "noticed many things}.",
        "Then came <peril>. {It happened very quickly|Nobody was ready for it|At first nobody took it "
        "seriously}, and <threat>. {Everyone ran here and there|The strong ones shouted, and the big ones "
        "argued|Even <e> did not know what to do}.",
        '{"I have a idea!" said <n>, but nobody listened|<n> pulled at sleeves and tails, but nobody had '
        "time for <him>|<n> tried to speak, but <his> voice was too small}. {Only <f>, a <fkind>, "
        'stopped|Only <his> friend <f>, a <fkind>, bent down}. "{What is it, <n>?|Tell me your idea,}" '
        'said <f>. <n> whispered it into <f.his> ear. {"That could work!" cried <f>|<f>\'s eyes grew '
        "wide}.",
        '<f> {lifted <n> up high|put <n> on <f.his> shoulders|banged on a pot}. "{Listen to <n>|Be quiet, '
        'all of you}!" {<f.he> shouted|called <f>}. {And this time they listened|It became quiet}. <n> '
        "{took a deep breath|swallowed}, and then <he> <idea>.",
        "{Everybody helped|There was no time to lose, and everyone did as <n> said|Some carried, some "
        "pulled, and some held the little ones by the hand}. {It was hard work, and it took all night|It "
        "was not easy, but it worked}. {When the sun came up|In the end}, {everyone was safe|the danger "
        "was over|nobody had been hurt}.",
        '{"You have saved us all," said <e>.|"We are sorry that we did not listen to you," said the '
        'others.|They carried <n> around and cheered.} "{I am still small|I only looked closely|It was '
        'nothing special}," said <n>, {and turned red|and smiled}.',
        "{Since then, nobody says that <n> is too small|From that day on, they always asked <n> for "
        "advice|They gave a big feast, and <n> sat in the best chair, on three pillows}. {You do not have "
        "to be big to have a big idea|And <f> is still <his> best friend|And <n>? <He> is still small, but "
        "<his> heart is big}.",
    ),
    want="<n> wanted to help everyone.",
    problem="There was <peril>, and nobody listened to <n>.",
    solved="<f> made everyone listen, and <n> <idea>.",
)
