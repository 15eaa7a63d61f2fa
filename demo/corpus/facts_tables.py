"""The demo model's facts, as tables."""

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
