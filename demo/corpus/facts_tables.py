"""The facts the demo model knows, as tables."""

# ruff: noqa: SIM905 - long lists of words are easier to read and to edit as text

# country, capital, continent
COUNTRIES: tuple[tuple[str, str, str], ...] = tuple(
    tuple(row.split("|"))  # type: ignore[misc]
    for row in """France|Paris|Europe
Germany|Berlin|Europe
Italy|Rome|Europe
Spain|Madrid|Europe
Portugal|Lisbon|Europe
England|London|Europe
Ireland|Dublin|Europe
Scotland|Edinburgh|Europe
Norway|Oslo|Europe
Sweden|Stockholm|Europe
Finland|Helsinki|Europe
Denmark|Copenhagen|Europe
Iceland|Reykjavik|Europe
Poland|Warsaw|Europe
Austria|Vienna|Europe
Switzerland|Bern|Europe
Greece|Athens|Europe
Hungary|Budapest|Europe
Belgium|Brussels|Europe
the Netherlands|Amsterdam|Europe
Croatia|Zagreb|Europe
Bulgaria|Sofia|Europe
Romania|Bucharest|Europe
Ukraine|Kyiv|Europe
Estonia|Tallinn|Europe
Latvia|Riga|Europe
Japan|Tokyo|Asia
China|Beijing|Asia
India|New Delhi|Asia
Thailand|Bangkok|Asia
Vietnam|Hanoi|Asia
South Korea|Seoul|Asia
Mongolia|Ulaanbaatar|Asia
Nepal|Kathmandu|Asia
Iraq|Baghdad|Asia
Iran|Tehran|Asia
Turkey|Ankara|Asia
Egypt|Cairo|Africa
Kenya|Nairobi|Africa
Morocco|Rabat|Africa
Ethiopia|Addis Ababa|Africa
Ghana|Accra|Africa
Senegal|Dakar|Africa
Tunisia|Tunis|Africa
Canada|Ottawa|North America
Mexico|Mexico City|North America
Cuba|Havana|North America
Jamaica|Kingston|North America
the United States|Washington|North America
Brazil|Brasilia|South America
Argentina|Buenos Aires|South America
Chile|Santiago|South America
Peru|Lima|South America
Colombia|Bogota|South America
Uruguay|Montevideo|South America
Ecuador|Quito|South America
Venezuela|Caracas|South America
Australia|Canberra|Oceania
New Zealand|Wellington|Oceania
Fiji|Suva|Oceania""".splitlines()
)

# animal, plural, sound (or ""), young, home, food, legs, group
ANIMALS: tuple[tuple[str, ...], ...] = tuple(
    tuple(row.split("|"))
    for row in """cat|cats|meow|kitten|a house|mice and fish|four|mammal
dog|dogs|woof|puppy|a kennel|meat and bones|four|mammal
cow|cows|moo|calf|a barn|grass|four|mammal
sheep|sheep|baa|lamb|a meadow|grass|four|mammal
pig|pigs|oink|piglet|a sty|almost anything|four|mammal
horse|horses|neigh|foal|a stable|grass and oats|four|mammal
goat|goats|bleat|kid|the mountains|grass and leaves|four|mammal
duck|ducks|quack|duckling|a pond|water plants and insects|two|bird
hen|hens|cluck|chick|a henhouse|grain and worms|two|bird
owl|owls|hoot|owlet|a hollow tree|mice|two|bird
frog|frogs|croak|tadpole|a pond|insects|four|amphibian
bee|bees|buzz|larva|a hive|nectar and pollen|six|insect
lion|lions|roar|cub|the savanna|meat|four|mammal
bear|bears|growl|cub|a den|berries, honey and fish|four|mammal
wolf|wolves|howl|pup|the forest|meat|four|mammal
snake|snakes|hiss|hatchling|a hole in the ground|mice and eggs|no|reptile
mouse|mice|squeak|pup|a hole|grain and cheese|four|mammal
elephant|elephants|trumpet|calf|the savanna|grass and leaves|four|mammal
rooster|roosters|cock-a-doodle-doo|chick|a henhouse|grain|two|bird
crow|crows|caw|chick|a nest in a tree|almost anything|two|bird
donkey|donkeys|hee-haw|foal|a stable|hay and grass|four|mammal
goose|geese|honk|gosling|a pond|grass|two|bird
rabbit|rabbits||bunny|a burrow|grass and carrots|four|mammal
fox|foxes||cub|a den|mice and berries|four|mammal
deer|deer||fawn|the forest|leaves and grass|four|mammal
squirrel|squirrels||kitten|a nest in a tree|nuts and seeds|four|mammal
hedgehog|hedgehogs||hoglet|a pile of leaves|insects and worms|four|mammal
beaver|beavers||kit|a lodge|bark and twigs|four|mammal
penguin|penguins||chick|the cold south|fish|two|bird
eagle|eagles||eaglet|a nest on a cliff|fish and small animals|two|bird
swan|swans||cygnet|a lake|water plants|two|bird
parrot|parrots||chick|the jungle|fruit and seeds|two|bird
whale|whales||calf|the sea|fish and tiny sea animals|no|mammal
dolphin|dolphins||calf|the sea|fish|no|mammal
shark|sharks||pup|the sea|fish|no|fish
salmon|salmon||fry|rivers and the sea|insects and small fish|no|fish
octopus|octopuses||larva|the sea|crabs|eight|mollusc
crab|crabs||larva|the beach|small sea animals|ten|crustacean
spider|spiders||spiderling|a web|insects|eight|arachnid
ant|ants||larva|an anthill|seeds and sugar|six|insect
butterfly|butterflies||caterpillar|meadows and gardens|nectar|six|insect
turtle|turtles||hatchling|the sea|sea grass|four|reptile
crocodile|crocodiles||hatchling|rivers|fish and meat|four|reptile
lizard|lizards||hatchling|warm rocks|insects|four|reptile
kangaroo|kangaroos||joey|Australia|grass|two|mammal
koala|koalas||joey|eucalyptus trees|eucalyptus leaves|four|mammal
panda|pandas||cub|bamboo forests|bamboo|four|mammal
tiger|tigers||cub|the jungle|meat|four|mammal
giraffe|giraffes||calf|the savanna|leaves|four|mammal
zebra|zebras||foal|the savanna|grass|four|mammal
camel|camels||calf|the desert|dry grass|four|mammal
monkey|monkeys||infant|the jungle|fruit|four|mammal
seal|seals||pup|cold seas|fish|no|mammal
bat|bats||pup|a cave|insects|two|mammal""".splitlines()
)

COLOURS: dict[str, str] = {
    "a banana": "yellow", "grass": "green", "the sky on a clear day": "blue", "snow": "white",
    "coal": "black",
    "a ripe tomato": "red", "a carrot": "orange", "an orange": "orange", "a lemon": "yellow", "blood": "red",
    "chocolate": "brown", "a strawberry": "red", "a cucumber": "green", "milk": "white", "a flamingo": "pink",
    "the night": "black", "a polar bear": "white", "a leaf in summer": "green", "a sunflower": "yellow",
    "an elephant": "grey", "a plum": "purple", "a pumpkin": "orange", "the sun in a picture": "yellow",
    "a frog": "green",
    "a cherry": "red", "a raven": "black", "salt": "white", "an eggplant": "purple", "a pea": "green",
    "sand": "yellow",
    "a fire engine": "red", "gold": "yellow", "silver": "grey", "a pig": "pink", "the sea": "blue",
    "honey": "golden",
}  # fmt: skip

MIXES: dict[tuple[str, str], str] = {
    ("red", "yellow"): "orange", ("blue", "yellow"): "green", ("red", "blue"): "purple",
    ("red", "white"): "pink",
    ("black", "white"): "grey", ("red", "green"): "brown",
}  # fmt: skip

OPPOSITES: tuple[tuple[str, str], ...] = tuple(
    tuple(pair.split("-"))  # type: ignore[misc]
    for pair in (
        "big-small hot-cold up-down day-night black-white fast-slow high-low old-young happy-sad open-closed "
        "light-dark long-short wet-dry full-empty hard-soft loud-quiet left-right good-bad early-late "
        "near-far "
        "rich-poor strong-weak thick-thin clean-dirty first-last start-end win-lose push-pull "
        "inside-outside above-below before-after always-never yes-no true-false easy-difficult wide-narrow "
        "sweet-sour smooth-rough brave-afraid asleep-awake deep-shallow front-back remember-forget give-take"
    ).split()
)

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
SEASONS = ("spring", "summer", "autumn", "winter")
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# how many ... : quantity, number, answer
QUANTITIES: tuple[tuple[str, str, str], ...] = (
    ("days are {in|there in} a week", "7", "There are 7 days in a week."),
    ("months are {in|there in} a year", "12", "There are 12 months in a year."),
    ("days are {in|there in} a year", "365", "There are 365 days in a year, and 366 in a leap year."),
    ("hours are {in|there in} a day", "24", "There are 24 hours in a day."),
    ("minutes are {in|there in} an hour", "60", "There are 60 minutes in an hour."),
    ("seconds are {in|there in} a minute", "60", "There are 60 seconds in a minute."),
    ("seasons are {in|there in} a year", "4",
     "There are 4 seasons in a year: spring, summer, autumn and winter."),
    ("weeks are {in|there in} a year", "52", "There are 52 weeks in a year."),
    ("letters are {in|there in} the {English |}alphabet", "26",
     "There are 26 letters in the English alphabet."),
    ("colours are {in|there in} {a|the} rainbow", "7",
     "There are 7 colours in a rainbow: red, orange, yellow, green, blue, "
     "indigo and violet."),
    ("planets are {there|in the solar system|there in the solar system}", "8",
     "There are 8 planets in the solar system."),
    ("continents are there{| on Earth| in the world}", "7", "There are 7 continents."),
    ("oceans are there{| on Earth| in the world}", "5", "There are 5 oceans."),
    ("fingers {does|do} a {hand|person's hand} have", "5", "A hand has 5 fingers."),
    ("toes does a person have", "10", "A person has 10 toes."),
    ("sides does a triangle have", "3", "A triangle has 3 sides."),
    ("sides does a square have", "4", "A square has 4 sides."),
    ("sides does a hexagon have", "6", "A hexagon has 6 sides."),
    ("corners does a cube have", "8", "A cube has 8 corners."),
    ("wheels does a bicycle have", "2", "A bicycle has 2 wheels."),
    ("wheels does a car have", "4", "A car has 4 wheels."),
    ("strings does a violin have", "4", "A violin has 4 strings."),
    ("eggs are in a dozen", "12", "There are 12 eggs in a dozen."),
    ("centimetres are in a metre", "100", "There are 100 centimetres in a metre."),
    ("metres are in a kilometre", "1000", "There are 1000 metres in a kilometre."),
    ("grams are in a kilogram", "1000", "There are 1000 grams in a kilogram."),
    ("years are in a century", "100", "There are 100 years in a century."),
    ("moons does the Earth have", "1", "The Earth has 1 moon."),
    ("players are in a football team", "11", "A football team has 11 players."),
)  # fmt: skip

# "what is ..." : thing, definition
THINGS: dict[str, str] = {
    "rain": "Rain is water that falls from clouds in drops.",
    "snow": "Snow is made of tiny crystals of ice that fall from clouds when it is cold.",
    "ice": "Ice is frozen water.",
    "steam": "Steam is water that has become so hot that it turned into gas.",
    "wind": "Wind is moving air.",
    "fog": "Fog is a cloud that lies close to the ground.",
    "thunder": "Thunder is the sound that lightning makes.",
    "lightning": "Lightning is a giant electric spark in a storm.",
    "a rainbow": "A rainbow is an arc of colours that appears when sunlight shines through raindrops.",
    "a cloud": "A cloud is made of many tiny drops of water in the sky.",
    "the sun": "The Sun is a star. It gives the Earth light and warmth.",
    "the moon": "The Moon goes around the Earth about once a month.",
    "a star": "A star is a huge ball of hot, glowing gas.",
    "a planet": "A planet is a large round body that goes around a star.",
    "the earth": "The Earth is the planet we live on.",
    "gravity": "Gravity is the force that pulls things towards the ground.",
    "a magnet": "A magnet is a piece of metal that pulls iron towards it.",
    "electricity": "Electricity is a form of energy that makes lamps and machines work.",
    "oxygen": "Oxygen is a gas in the air that we need to breathe.",
    "a volcano": "A volcano is a mountain that can throw out hot melted rock.",
    "an earthquake": "An earthquake is a shaking of the ground.",
    "a desert": "A desert is a place where it hardly ever rains.",
    "an island": "An island is land with water all around it.",
    "a river": "A river is a stream of water that flows to the sea or to a lake.",
    "a lake": "A lake is a large body of water with land all around it.",
    "an ocean": "An ocean is a very large sea of salt water.",
    "a mountain": "A mountain is land that rises very high.",
    "a forest": "A forest is a large area full of trees.",
    "a seed": "A seed is the small part of a plant from which a new plant grows.",
    "a flower": "A flower is the part of a plant that makes seeds.",
    "a tree": "A tree is a tall plant with a trunk of wood.",
    "honey": "Honey is a sweet food that bees make from nectar.",
    "milk": "Milk is a white drink that mothers of mammals make for their young.",
    "bread": "Bread is a food baked from flour and water.",
    "cheese": "Cheese is a food made from milk.",
    "a mammal": "A mammal is an animal that feeds its young with milk.",
    "an insect": "An insect is a small animal with six legs.",
    "a reptile": "A reptile is an animal with scales, like a snake or a lizard.",
    "a bird": "A bird is an animal with feathers and wings that lays eggs.",
    "a fish": "A fish is an animal that lives in water and breathes with gills.",
    "a dinosaur": "A dinosaur was a reptile that lived millions of years ago.",
    "the heart": "The heart is a muscle that pumps blood through the body.",
    "the brain": "The brain is the part of the body that thinks and remembers.",
    "a lung": "A lung is the part of the body that takes in air.",
    "blood": "Blood is the red liquid that carries oxygen through the body.",
    "a bone": "A bone is a hard part of the body that holds it up.",
    "a compass": "A compass is a tool that shows where north is.",
    "a clock": "A clock is a machine that shows the time.",
    "a thermometer": "A thermometer is a tool that measures how warm it is.",
    "a telescope": "A telescope is a tool that makes far things look near.",
    "a microscope": "A microscope is a tool that makes tiny things look big.",
    "a bridge": "A bridge is a way across a river or a road.",
    "a lighthouse": "A lighthouse is a tower with a bright light that guides ships.",
    "a library": "A library is a place where people read and borrow books.",
    "a dictionary": "A dictionary is a book that explains words.",
    "a map": "A map is a drawing that shows where places are.",
    "a piano": "A piano is a musical instrument with black and white keys.",
    "a computer": "A computer is a machine that follows instructions and works with information.",
    "a language model": "A language model is a program that has learned from text which word is likely to "
    "come next.",
    "paper": "Paper is made from wood.",
    "glass": "Glass is made from melted sand.",
    "wool": "Wool is the soft hair of sheep.",
    "a triangle": "A triangle is a shape with three sides.",
    "a circle": "A circle is a round shape.",
    "a square": "A square is a shape with four equal sides.",
    "a fairy tale": "A fairy tale is an old story with magic in it.",
    "a friend": "A friend is somebody who likes you and helps you.",
    "a dream": "A dream is a story that your mind tells you while you sleep.",
}

# single questions: paraphrases to train on, paraphrases held out, answer
SINGLES: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("why is the sky blue", "why is the sky so blue", "what makes the sky blue",
      "explain why the sky is blue",
      "tell me why the sky is blue"), ("why does the sky look blue",),
     "The sky is blue because air scatters blue light more than red light."),
    (("at what temperature does water boil", "when does water boil", "what is the boiling point of water",
      "how hot is boiling water", "how many degrees does water need to boil"),
     ("at how many degrees does water boil",),
     "Water boils at 100 degrees Celsius."),
    (("at what temperature does water freeze", "when does water freeze",
      "what is the freezing point of water",
      "when does water turn to ice", "how cold must it be for water to freeze"),
     ("at how many degrees does water freeze",),
     "Water freezes at 0 degrees Celsius."),
    (("what is the largest planet", "which planet is the biggest", "what is the biggest planet",
      "which planet is largest",
      "name the biggest planet", "what is the biggest planet in the solar system"),
     ("which is the largest planet",),
     "Jupiter is the largest planet in the solar system."),
    (("what is the smallest planet", "which planet is the smallest", "name the smallest planet",
      "which planet is tiniest",
      "what is the smallest planet in the solar system"), ("which is the smallest planet",),
     "Mercury is the smallest planet in the solar system."),
    (("which planet has rings", "what planet has big rings", "which planet is famous for its rings",
      "what is the planet with rings", "name a planet with rings"), ("which planet has large rings",),
     "Saturn has large rings."),
    (("which planet is red", "what is the red planet", "which planet is called the red planet",
      "what planet is red",
      "name the red planet"), ("which planet do people call the red planet",),
     "Mars is called the red planet."),
    (("what is the largest animal", "which animal is the biggest", "what is the biggest animal",
      "which animal is the largest",
      "name the biggest animal", "what is the biggest animal in the world"),
     ("what is the largest animal on earth",),
     "The blue whale is the largest animal on Earth."),
    (("what is the fastest animal on land", "which animal runs the fastest", "what is the fastest animal",
      "which land animal is the fastest", "name the fastest animal", "who is the fastest animal"),
     ("which animal is the fastest",), "The cheetah is the fastest animal on land."),
    (("what is the tallest animal", "which animal is the tallest", "name the tallest animal",
      "who is the tallest animal",
      "what is the tallest animal in the world"), ("which is the tallest animal",),
     "The giraffe is the tallest animal."),
    (("what is the largest bird", "which bird is the biggest", "what is the biggest bird",
      "name the largest bird",
      "which bird is the largest"), ("what is the biggest bird in the world",),
     "The ostrich is the largest bird."),
    (("what is the highest mountain", "which mountain is the highest", "what is the tallest mountain",
      "name the highest mountain", "what is the highest mountain in the world",
      "what is the tallest mountain in the world"),
     ("which mountain is the tallest",), "Mount Everest is the highest mountain in the world."),
    (("what is the largest ocean", "which ocean is the biggest", "what is the biggest ocean",
      "name the largest ocean",
      "which ocean is the largest"), ("what is the biggest ocean on earth",),
     "The Pacific is the largest ocean."),
    (("what is the longest river", "which river is the longest", "name the longest river",
      "what river is the longest",
      "what is the longest river in the world"), ("which is the longest river",),
     "The Nile is often called the longest river."),
    (("what is the largest country", "which country is the biggest", "what is the biggest country",
      "name the largest country",
      "which country is the largest", "what is the biggest country in the world"),
     ("what is the largest country on earth",),
     "Russia is the largest country in the world."),
    (("what is the smallest country", "which country is the smallest", "name the smallest country",
      "what is the smallest country in the world"), ("which is the smallest country",),
     "Vatican City is the smallest country in the world."),
    (("what is the largest desert", "what is the biggest hot desert", "which desert is the biggest",
      "name a big desert",
      "name the largest hot desert"), ("what is the largest hot desert",),
     "The Sahara is the largest hot desert."),
    (("where does the sun rise", "in which direction does the sun rise", "where does the sun come up",
      "where is sunrise"),
     ("on which side does the sun rise",), "The sun rises in the east."),
    (("where does the sun set", "in which direction does the sun set", "where does the sun go down",
      "where is sunset"),
     ("on which side does the sun set",), "The sun sets in the west."),
    (("what do plants need to grow", "what does a plant need", "what do plants need",
      "what does a plant need to grow",
      "what do flowers need to grow"), ("what do plants need to live",),
     "Plants need water, light, air and good soil."),
    (("what do bees make", "what does a bee make", "what do bees produce", "what comes from bees"),
     ("what is made by bees",), "Bees make honey."),
    (("who makes honey", "which animal makes honey", "what animal makes honey", "where does honey come from"),
     ("which insect makes honey",), "Bees make honey."),
    (("why do leaves fall in autumn", "why do trees lose their leaves", "why do leaves fall",
      "when do trees lose their leaves"),
     ("why do trees drop their leaves",),
     "Trees drop their leaves in autumn to save water during the winter."),
    (("how old is the earth", "what is the age of the earth", "tell me how old the earth is",
      "how many years old is the earth"),
     ("what age is the earth",), "The Earth is about four and a half billion years old."),
    (("how far away is the moon", "what is the distance to the moon", "how far is the moon",
      "how far is it to the moon"),
     ("how far is the moon from the earth",), "The Moon is about 384,000 kilometres away."),
    (("is the earth flat", "is the earth round", "what shape is the earth", "what is the shape of the earth"),
     ("what shape does the earth have",), "The Earth is round, almost like a ball."),
    (("is the sun a star", "is the sun a planet", "what kind of thing is the sun", "is our sun a star"),
     ("is the sun a planet or a star",), "The Sun is a star."),
    (("can penguins fly", "do penguins fly", "is a penguin able to fly", "can a penguin fly"),
     ("are penguins able to fly",),
     "Penguins cannot fly, but they swim very well."),
    (("can fish breathe under water", "how do fish breathe", "how does a fish breathe",
      "how can fish breathe in water"),
     ("how do fish breathe under water",), "Fish breathe under water with gills."),
    (("why do we sleep", "why do people sleep", "why must we sleep", "why do we need sleep"),
     ("why do humans sleep",),
     "We sleep so that the body and the brain can rest."),
    (("what do caterpillars become", "what does a caterpillar turn into", "what becomes of a caterpillar",
      "what does a caterpillar become"), ("what do caterpillars turn into",),
     "A caterpillar becomes a butterfly."),
    (("what do tadpoles become", "what does a tadpole turn into", "what becomes of a tadpole",
      "what does a tadpole become"),
     ("what do tadpoles turn into",), "A tadpole becomes a frog."),
    (("who was the first person on the moon", "who was the first man on the moon",
      "who walked on the moon first",
      "who first walked on the moon"), ("who was first on the moon",),
     "Neil Armstrong was the first person on the Moon, in 1969."),
    (("which month is the shortest", "what is the shortest month", "which is the shortest month",
      "name the shortest month"),
     ("what month is the shortest",), "February is the shortest month."),
    (("name the colours of the rainbow", "what are the colours of the rainbow",
      "which colours are in a rainbow",
      "tell me the colours of the rainbow"), ("what colours does a rainbow have",),
     "The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet."),
    (("name the seasons", "what are the four seasons", "what are the seasons", "list the seasons",
      "tell me the seasons"),
     ("which seasons are there",), "The four seasons are spring, summer, autumn and winter."),
    (("name the days of the week", "what are the days of the week", "list the days of the week",
      "tell me the days of the week"),
     ("which days does a week have",),
     "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    (("name the months", "what are the months of the year", "list the months",
      "tell me the months of the year",
      "name the months of the year"), ("which months does a year have",),
     "The months are January, February, March, April, May, June, July, August, September, October, "
     "November and December."),
    (("name the planets", "what are the planets", "list the planets", "tell me the planets",
      "what are the planets of the solar system"), ("which planets are there",),
     "The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune."),
    (("name the continents", "what are the continents", "list the continents", "tell me the continents",
      "what are the seven continents"), ("which continents are there",),
     "The continents are Africa, Antarctica, Asia, Europe, North America, Oceania and South America."),
    (("name the oceans", "what are the oceans", "list the oceans", "tell me the oceans",
      "what are the five oceans"),
     ("which oceans are there",),
     "The oceans are the Pacific, the Atlantic, the Indian Ocean, the Arctic Ocean and the Southern Ocean."),
    (("say the alphabet", "what is the alphabet", "tell me the alphabet", "recite the alphabet",
      "list the alphabet"),
     ("how does the alphabet go",),
     "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z."),
    (("what is the closest planet to the sun", "which planet is closest to the sun",
      "which planet is nearest to the sun",
      "what planet is nearest to the sun"), ("which is the nearest planet to the sun",),
     "Mercury is the closest planet to the Sun."),
    (("what is the hottest season", "which season is the warmest", "what is the warmest season",
      "which season is the hottest"),
     ("which is the warmest season",), "Summer is the warmest season."),
    (("what is the coldest season", "which season is the coldest", "name the coldest season",
      "what season is the coldest"),
     ("which is the coldest season",), "Winter is the coldest season."),
    (("what is h2o", "what does h2o mean", "what is the formula of water", "tell me what h2o is"),
     ("what is meant by h2o",),
     "H2O is the chemical formula of water."),
    (("who wrote romeo and juliet", "who is the author of romeo and juliet", "who wrote hamlet",
      "what did shakespeare write"),
     ("which author wrote romeo and juliet",), "William Shakespeare wrote Romeo and Juliet, and Hamlet too."),
    (("who painted the mona lisa", "who is the painter of the mona lisa",
      "which artist painted the mona lisa",
      "who made the mona lisa"), ("which painter painted the mona lisa",),
     "Leonardo da Vinci painted the Mona Lisa."),
    (("what do we breathe", "what gas do we need to breathe", "which gas do we breathe",
      "what do people breathe"),
     ("what gas do people need to breathe",), "We breathe air, and we need the oxygen in it."),
    (("is a tomato a fruit", "is a tomato a fruit or a vegetable", "is tomato a vegetable",
      "are tomatoes fruit"),
     ("are tomatoes fruits or vegetables",), "A tomato is a fruit, but cooks use it as a vegetable."),
    (("what is the opposite direction of north", "what is opposite to north",
      "which direction is opposite to north"),
     ("what lies opposite to north",), "South is opposite to north."),
    (("what are the directions", "name the four directions", "what are the four directions",
      "list the compass directions"),
     ("which directions are on a compass",), "The four directions are north, east, south and west."),
)  # fmt: skip
