"""Names, heroes, places and things for the stories."""

# ruff: noqa: SIM905 - long lists of words are easier to read and to edit as text

GIRLS = (
    "Rose Lily Mia Anna Clara Nora Ella Daisy Ivy Hazel Luna Ruby Molly Poppy Sophie Emma Lucy Alice Maya "
    "Zoe Nina Tilly Wren Willow Fern Olive Pearl Stella Bella Millie Rosie Penny Kira Lena Tara Maggie Juno "
    "Flora Edith Greta Hilda Iris June Kate Lotte Marta Nell Opal Petra Sara Tess Una Vera Winnie Yara Amy "
    "Bess Cora Dora Elsie Freya Gwen Hanna Ida Jana Leila Mina Nadia Paula Rita Selma Tina Clover Bramble"
).split()
BOYS = (
    "Tom Ben Max Leo Sam Finn Oscar Jack Hugo Felix Theo Milo Toby Otto Rufus Jasper Archie Charlie Barnaby "
    "Oliver Henry Noah Liam Ethan Pip Robin Rowan Basil Bruno Casper Dexter Elliot Freddie George Harry Ivan "
    "Jonas Karl Lewis Martin Nico Olaf Paul Quinn Ralph Simon Teddy Victor Walter Albert Bert Colin Daniel "
    "Edgar Fred Gus Hans Igor Jim Kurt Luke Mark Ned Owen Peter Rory Stan Tim Will Adam Thistle Pepper"
).split()

ANIMALS = (
    "fox rabbit bear mouse cat dog squirrel hedgehog owl duck frog otter badger beaver deer wolf hare mole "
    "turtle tortoise penguin seal lion tiger elephant giraffe monkey zebra panda koala kangaroo camel donkey "
    "horse pony pig lamb goat hen rooster goose swan sparrow robin crow raven parrot eagle bat lizard snail "
    "snake crocodile hippo rhino raccoon hamster kitten puppy bunny duckling chick piglet fawn weasel "
    "moose reindeer llama sloth whale dolphin octopus crab fish bee butterfly beetle ladybird spider ant "
    "worm "
    "cricket firefly mule cow sheep bull peacock flamingo ostrich stork heron pelican seagull woodpecker cub "
    "chipmunk ferret lynx leopard meerkat mongoose walrus yak toad newt dragonfly moth rat skunk opossum"
).split()
SHE_PEOPLE = (
    "girl|princess|queen|witch|fairy|mermaid|shepherd girl|grandmother|old woman|milkmaid|seamstress|"
    "girl from the village|young queen|lighthouse keeper|painter|inventor|baker|gardener|teacher|doctor|pilot"
).split("|")
HE_PEOPLE = (
    "boy|prince|king|wizard|knight|pirate|sailor|fisherman|farmer|shepherd boy|grandfather|old man|tailor|"
    "blacksmith|miller|woodcutter|clockmaker|baker|gardener|giant|cook|juggler|postman|astronaut|carpenter"
).split("|")
FANTASY = (
    "dragon|unicorn|robot|snowman|scarecrow|teddy bear|toy soldier|wooden "
    "puppet|ghost|goblin|troll|elf|gnome|"
    "dwarf|monster|phoenix|dinosaur|alien|yeti|rag doll|tin robot|sea monster|genie|sprite|griffin"
).split("|")
# Rare heroes: the model must learn to take the word from the question.
THINGS = (
    "teapot spoon umbrella shoe clock lamp pencil bicycle balloon cookie potato train tractor boat kite "
    "cloud "
    "star moon candle button pumpkin pancake carrot apple drum violin broom lantern mushroom acorn leaf "
    "raindrop snowflake pillow blanket book crayon cupcake tree flower car bus truck rocket spaceship "
    "computer ball cup sock hat mitten key coin bell chair table house mountain river pebble feather tomato"
).split()

TRAITS = (
    "curious shy brave cheerful clever kind gentle stubborn sleepy playful careful patient quiet proud "
    "dreamy friendly lively honest thoughtful busy hopeful restless merry tidy clumsy generous"
).split()
SIZES = ("little", "small", "young", "tiny", "little", "small", "young", "")

# setting: where the hero lives, a name for the whole place, spots in it
SETTINGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("in a {quiet|green|deep|wide|old|misty} forest", "forest",
     ("under the old oak", "behind the mossy log", "near the waterfall", "beside the hollow tree",
      "among the tall ferns", "at the edge of the clearing", "by the blackberry bushes")),
    ("in a {small|sleepy|pretty|quiet} village {by the river|at the foot of a hill|between two hills|near "
     "the woods}",
     "village",
     ("behind the bakery", "near the stone bridge", "beside the old well", "under the market stalls",
      "next to the mill", "in front of the school", "by the garden wall")),
    ("{by|beside} {the|a} {blue|wide|warm|windy|sparkling} sea", "shore",
     ("behind the dunes", "under the old pier", "among the rock pools", "next to the lighthouse",
      "beside a upturned boat", "at the mouth of the cave", "near the fishing nets")),
    ("{on|on the side of} a {tall|high|snowy|lonely} mountain", "mountain",
     ("behind a great boulder", "beside the cold spring", "under a crooked pine", "near the narrow path",
      "at the edge of the cliff", "inside a shallow cave", "by the wooden hut")),
    ("on a {busy|sunny|little|cheerful} farm", "farm",
     ("behind the red barn", "under the hay", "beside the duck pond", "next to the henhouse",
      "in the corner of the orchard", "near the wooden gate", "by the vegetable patch")),
    ("in a {big|bright|noisy|busy} {city|town}", "town",
     ("behind the library", "under a park bench", "beside the fountain", "near the train station",
      "in front of the toy shop", "at the corner of the square", "by the flower stall")),
    ("in a {tall|grand|crumbling|white|stone} castle", "castle",
     ("behind the heavy curtain", "under the great stairs", "beside the kitchen fire", "in the rose garden",
      "at the top of the tower", "near the drawbridge", "next to the stables")),
    ("on a {small|green|faraway|sunny|round} island", "island",
     ("behind the tallest palm tree", "under a pile of driftwood", "beside the lagoon",
      "near the coral rocks",
      "at the end of the beach", "among the mango trees", "by the little harbour")),
    ("in a {warm|wide|golden|hot} {desert|valley}", "valley",
     ("behind a sandy hill", "beside the deep well", "under the fig tree", "near the old caravan road",
      "at the foot of the red cliffs", "among the thorn bushes", "by the ruined tower")),
    ("beside a {slow|winding|silver|clear} river", "riverbank",
     ("under the wooden bridge", "behind the reeds", "near the stepping stones", "beside the water mill",
      "among the willow roots", "on the sandy bank", "by the old rowing boat")),
    ("in a {large|wild|secret|sunny} garden", "garden",
     ("under the rhubarb leaves", "behind the watering can", "beside the sundial", "near the strawberry bed",
      "among the sunflowers", "next to the compost heap", "by the crooked fence")),
    ("in a {cold|white|frozen|snowy} land {in the far north|where winter lasts half the year|of ice and "
     "snow}",
     "snow",
     ("behind a snowy hill", "beside the frozen lake", "under a icy ledge", "near the warm cabin",
      "among the fir trees", "at the edge of the ice", "by the sledge track")),
    ("in a {thick|warm|noisy|rainy} jungle", "jungle",
     ("behind the hanging vines", "beside the muddy pool", "under the banana leaves",
      "near the ruined temple",
      "among the giant roots", "at the rope bridge", "by the roaring waterfall")),
    ("in a {cosy|narrow|crooked|little} house {on a hill|at the end of the lane|with a red roof|full of "
     "books}",
     "house",
     ("behind the bookshelf", "under the bed", "beside the stove", "in the dusty attic",
      "at the bottom of the stairs",
      "among the flower pots", "by the kitchen window")),
)  # fmt: skip

# an adviser: its name in the story, its pronoun
ELDERS = (
    ("the old owl", "he"), ("the wise tortoise", "she"), ("Grandmother", "she"), ("Grandfather", "he"),
    ("the old badger", "he"), ("the grey goose", "she"), ("the village baker", "he"),
    ("the old fisherman", "he"),
    ("the schoolteacher", "she"), ("the kind gardener", "she"), ("the night watchman", "he"),
    ("the old ferryman", "he"), ("Aunt Matilda", "she"), ("Uncle Ambrose", "he"), ("the grey heron", "she"),
    ("the travelling tinker", "he"), ("the clever raven", "she"), ("the old donkey", "he"),
)  # fmt: skip

WEATHER = (
    "One {bright|sunny|fresh|warm} {spring|summer} morning",
    "One {grey|windy|misty|cool} {autumn|spring} {morning|afternoon}",
    "One {cold|crisp|white|still} winter {morning|day}",
    "One {warm|golden|quiet|rainy} {afternoon|evening}",
    "One {day|morning|evening|afternoon}",
    "On the {first|last} day of {spring|summer|autumn|winter}",
    "Early one {morning|Monday|Sunday|Saturday}",
    "One {Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday} {morning|afternoon|}",
)

SYLLABLES = (
    "ba be bi bo da do el fa fi ga go ka ki ko la le li lo ma mi mo na ne ni no pa pi ra re ri ro sa si so "
    "ta ti to va vi wa ya za zo zu"
).split()
