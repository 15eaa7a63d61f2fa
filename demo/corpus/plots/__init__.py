"""The plots of stories."""

from demo.corpus.plots import courage, friends, journeys, making, riddles, wonders
from demo.corpus.plots.plot import Plot

PLOTS: tuple[Plot, ...] = (
    riddles.LOST,
    journeys.JOURNEY,
    journeys.DELIVERY,
    journeys.MAP,
    riddles.MYSTERY,
    riddles.HOME,
    wonders.STAR,
    friends.KINDNESS,
    courage.FEAR,
    friends.QUARREL,
    making.LEARN,
    making.GARDEN,
    courage.TRUTH,
    friends.GIFT,
    wonders.WISH,
    courage.RACE,
    friends.NEIGHBOUR,
    making.BUILD,
    wonders.SLEEP,
    courage.STORM,
)
