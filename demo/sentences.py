"""A page of English text on eight topics, from three words to well over a hundred.

Real traffic looks like this: most texts are short, a few are long, and a batch padded to its
longest text is mostly padding. Neighbours by meaning should share a topic, which a reader can see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PAGE", "Sentence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One text of the page and the topic that it was written for."""

    topic: str
    text: str

    @property
    def words(self) -> int:
        """Number of words, as white space separates them."""
        return len(self.text.split())


_TOPICS: Mapping[str, tuple[str, ...]] = {
    "astronomy": (
        "Saturn has rings.",
        "The telescope found a faint new comet.",
        "A black hole bends the light of every star that lies behind it.",
        "Jupiter's largest moon is bigger than the planet Mercury.",
        "On a clear night far from any town the Milky Way is bright enough to throw a shadow.",
        (
            "The probe needed nine years to reach Pluto, then flew past it in a few hours and "
            "spent more than a year sending the pictures home."
        ),
        (
            "When a heavy star has burned all of its fuel, the core falls in on itself within a "
            "second, and the outer layers are thrown into space so violently that the explosion "
            "can outshine the whole galaxy around it for several weeks."
        ),
        (
            "For most of history nobody could say how far away the stars were, because the only "
            "honest method is to look at the same star from two places and measure how much it "
            "seems to shift, and even from opposite ends of the Earth's orbit that shift is "
            "smaller than the width of a coin seen from several kilometres away; it took until "
            "eighteen thirty-eight before an astronomer with a patient hand and a very good "
            "telescope measured it for one faint star in the constellation of the Swan, found "
            "that its light travels more than ten years to reach us, and so showed at a single "
            "stroke that the universe was vastly larger than the solar system, that the other "
            "stars were suns in their own right, and that a map of the sky would from now on need "
            "a third dimension."
        ),
    ),
    "cooking": (
        "Cook the pasta.",
        "Let the bread dough rise overnight.",
        "Fry the onions slowly until they are soft and golden.",
        "Butter, eggs, sugar and flour in equal weights make a good cake.",
        "Fresh basil goes into the tomato sauce at the very end, or it turns black and bitter.",
        (
            "If the mayonnaise splits, start again with one egg yolk in a clean bowl and beat the "
            "broken sauce into it drop by drop."
        ),
        (
            "She bakes her apple tart on a hot steel plate so that the bottom of the pastry sets "
            "before the juice of the fruit can soak into it, and she brushes the top with a "
            "little apricot jam while it is still warm."
        ),
        (
            "To make a proper stew, dry the meat well, brown it in small portions so that the pan "
            "never cools down, take it out, and let the onions, carrots and celery take up "
            "everything that stuck to the bottom; then put the meat back, pour in half a bottle "
            "of red wine and enough stock to come three quarters of the way up, add two bay "
            "leaves and a strip of orange peel, cover the pot, and leave it in a low oven for "
            "three hours without lifting the lid more than once, after which the sauce should "
            "coat a spoon, the meat should fall apart under a fork, and the kitchen should smell "
            "so good that the neighbours find a reason to ring the bell."
        ),
    ),
    "railways": (
        "The train is late.",
        "Night trains are coming back.",
        "The express from the capital stops at every third station.",
        "Steam engines needed water more often than they needed coal.",
        "Passengers without a seat reservation should wait near the last carriage.",
        (
            "A freight train two kilometres long needs more than a minute to clear the level "
            "crossing, and longer when the rails are wet."
        ),
        (
            "The new signalling system tells each driver how fast the track ahead may be taken, "
            "so that trains can follow one another at a distance of two minutes instead of five "
            "without any change to the rails themselves."
        ),
        (
            "When the mountain line was planned, the engineers had to choose between a long "
            "tunnel at the foot of the pass and a short one near its top, and because nobody knew "
            "how hard the rock would be they chose the short one, which meant that for more than "
            "a century every train had to climb eleven hundred metres through spirals, viaducts "
            "and snow sheds with a second locomotive pushing from behind; only when the deep "
            "tunnel was finally opened could the same goods travel almost level from one side of "
            "the mountains to the other, in half the time and with a third of the power, while "
            "the old line, too beautiful to be given up, carries tourists who lean out of the "
            "windows and photograph the curves."
        ),
    ),
    "gardening": (
        "Roses need pruning.",
        "Slugs ate all the young lettuce.",
        "Prune the apple trees in late winter, before the buds swell.",
        "Garden compost needs air, so turn the heap every few weeks.",
        "Tomato plants that stand too close together catch mildew after the first wet week.",
        (
            "Sow the poppies thinly in loose soil, cover them with sand, and keep the bed damp "
            "until the seedlings show."
        ),
        (
            "We planted lavender along the path because bees love it, because it survives the dry "
            "summers without watering, and because it smells wonderful whenever somebody brushes "
            "past it with a wheelbarrow."
        ),
        (
            "An old gardener once told me that the whole art lies in looking: you walk along the "
            "beds every morning with a cup of coffee, before the sun is high, and you notice that "
            "the beans on the left are paler than those on the right, that something has been "
            "nibbling at the cabbage, that the soil under the raspberries is cracked although it "
            "rained two days ago, and you do one small thing about each of them at once, a "
            "handful of compost, a collar of eggshells, a can of water, a layer of straw; done "
            "daily it costs a quarter of an hour and is a pleasure, whereas whoever leaves "
            "everything until the weekend finds a jungle, works until dark, and says afterwards "
            "that a garden is too much trouble."
        ),
    ),
    "medicine": (
        "Vaccines save lives.",
        "The vaccine protects for ten years.",
        "The patient's fever fell after the second dose of antibiotics.",
        "A broken wrist usually heals within six weeks in a cast.",
        (
            "High blood pressure causes no pain, which is why so many people do not know they "
            "have it."
        ),
        (
            "The surgeon closed the wound with seven stitches and told him not to lift anything "
            "heavy for a fortnight."
        ),
        (
            "Doctors advise people who travel to the tropics to see a clinic at least six weeks "
            "before they leave, because some vaccinations need several doses and the body needs "
            "time to build up its defence."
        ),
        (
            "In the trial, four thousand patients with heart failure were divided by chance into "
            "two groups, one of which received the new drug and the other a tablet that looked "
            "and tasted the same but contained nothing, and neither the patients nor the doctors "
            "who treated them knew who belonged to which group until the last results had been "
            "written down; after three years the treated group had been taken to hospital a "
            "quarter less often, their kidneys worked no worse than those of the others, and the "
            "only side effect that occurred more frequently was a mild dizziness on standing up, "
            "so that the committee stopped the study early and recommended that everyone who had "
            "taken part should be offered the drug."
        ),
    ),
    "football": (
        "They lost again.",
        "The goalkeeper saved two penalties.",
        "The captain scored the winning goal in the last minute of extra time.",
        "The referee showed him a red card for the late tackle.",
        "After the final whistle thousands of supporters ran onto the pitch to hug the players.",
        (
            "The coach left his best striker on the bench for an hour, and the crowd let him know "
            "what they thought of it."
        ),
        (
            "Although the visitors had the ball for two thirds of the match, they hardly ever "
            "came into the penalty area, and a single quick counter-attack after half-time was "
            "enough to send them home without a point."
        ),
        (
            "The little club from the harbour had never played in the first division, its stadium "
            "had one proper stand and a grass bank on which the children rolled down at half- "
            "time, and its left back drove a delivery van during the week, so nobody expected "
            "anything when they were drawn against the champions in the cup; but it had rained "
            "for days, the pitch was heavy, the champions passed the ball neatly from puddle to "
            "puddle, and after eighty minutes without a goal a long throw-in dropped among a "
            "forest of legs, somebody's knee touched it, and it rolled over the line so slowly "
            "that the whole ground fell silent before the roar began, a roar which the people in "
            "the ferry terminal are said to have taken for a ship's horn."
        ),
    ),
    "money": (
        "Interest rates rose.",
        "The bank refused the loan.",
        "Inflation makes savings worth a little less every year.",
        "He pays his rent on the first day of the month.",
        "Shares of the carmaker fell by nine percent after it warned of lower profits.",
        (
            "If you repay a mortgage early, ask first whether the bank will charge a fee for the "
            "interest that it loses."
        ),
        (
            "The central bank bought government bonds for years in order to push long-term "
            "interest rates down, and nobody is quite sure what will happen to the price of "
            "houses when it begins to sell them again."
        ),
        (
            "Compound interest is easy to write down and hard to feel: a person who puts away a "
            "hundred a month from the age of twenty-five and stops at thirty-five will, if the "
            "returns are the same, usually have more at sixty-five than a person who begins at "
            "thirty-five and never stops, although the second one has paid in three times as "
            "much, because the first ten years of deposits had thirty further years in which to "
            "earn, and their earnings to earn again; the same arithmetic works just as patiently "
            "in the other direction for someone who carries a debt on a credit card from month to "
            "month, which is why it is worth explaining to every pupil before the first account "
            "is opened and the first card arrives in the post."
        ),
    ),
    "music": (
        "Tune your violin.",
        "The choir sang without any accompaniment.",
        "The pianist played the slow movement almost without pedal.",
        "A minor chord sounds sad to most listeners.",
        "The drummer kept perfect time while the rest of the band slowly fell apart.",
        (
            "She learned the cello suites by heart before she had ever seen them played by anyone "
            "else."
        ),
        (
            "The old organ in the village church has only eleven stops, but whoever sits down at "
            "it understands at once why people used to travel for two days merely to hear one "
            "evening concert."
        ),
        (
            "The conductor stopped the orchestra after four bars, asked the second violins to "
            "play their line alone, and then had everyone else hum it, because, as he said, a "
            "melody that is buried in the middle of the harmony is only heard by the audience if "
            "it is first heard by the people who sit next to it, and because a player who has "
            "sung a phrase once, however badly, knows for ever where it breathes; they went back "
            "to the beginning, and although nobody was playing any louder than before, the "
            "passage had suddenly become transparent, the horns left a little more room, the "
            "flutes waited for the end of the phrase, and a trombone player who had been counting "
            "rests in that symphony for twenty years remarked during the break that he had always "
            "supposed those bars to be a mere filling between two themes, while in fact they were "
            "the place where the whole piece changed its mind."
        ),
    ),
}

PAGE: tuple[Sentence, ...] = tuple(
    Sentence(topic=topic, text=text) for topic, texts in _TOPICS.items() for text in texts
)
