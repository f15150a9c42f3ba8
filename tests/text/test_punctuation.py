"""Tests of `decoder2vec.text.punctuation`: stripping of texts, and edits that restore them exactly."""

from __future__ import annotations

import itertools
import random
import re
import sys

import pytest

from decoder2vec.errors import InputError
from decoder2vec.text.punctuation import (
    KEEP,
    MARKS,
    NO_LABEL,
    Case,
    Change,
    Edit,
    EditVocabulary,
    aligned_words,
    pack_sentences,
    strip_punctuation,
    word_edits,
)

LINES = """\
The U.S. economy grew by 3.5% in 2021, the Commerce Dept. said.
"I don't know," she said, "but it's 1,000 miles from here!"
Dr. McCoy isn't a bricklayer; he's a doctor, Jim.
He paid $1,234,567.89 for it... and then (oddly) sold it!
\u201cWe\u2019ll see,\u201d said O\u2019Brien. \u2018Perhaps.\u2019
At 5 p.m. on Jan. 3rd, NASA's JPL team said: "Go, go, go!"
" Hello , " he said . " Are you ( still ) there ? "
The dogs' bowls were empty; the children's weren't.
Rock 'n' roll isn't dead - it's in the '80s section.
WHO IS IT? It's me, I'm home!!! Why...?
YouTube, iPhones, eBay, DVDs and PhDs: what's next?
Anglo-Saxon jean-luc Jean-Luc JEAN-LUC Jean-luc
e.g. this, i.e. that, etc., vs. those, a.k.a. "them".
Visit www.example.com/index.html or mail j.doe@example.org, please.
AT&T's C++ and F# teams (R&D) met at 10:30 a.m. in St. John's.
... and so it began.
"
It cost .50 or -.5, or ,5 in some places.
Is that James's, James', or Jameses'?
He said 'She said "They said \u201cno\u201d".'
Wait , what ?! No ... not again !
- a dash first, then * a star * and _underscores_
Caf\u00e9 M\u00dcNCHEN Stra\u00dfe STRASSE \u00c9t\u00e9 \u0130stanbul \u039f\u0394\u039f\u03a3 \u01c5
\u4ed6\u8bf4\u3002 \u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u00bfQu\u00e9? \u05e9\u05dc\u05d5\u05dd.
\ttabs\tand   many \u00a0 spaces \n
x
I""".splitlines()

OPENINGS = ["", '"', "\u201c", "( ", "... ", "Well, "]
PEOPLE = ["Mr. O'Neill", "the U.N.", "McDonald's", "She", "NATO's Gen. J.R. Smith", "d'Artagnan", "my wife's iPad"]
SAYINGS = [
    "can't pay $2,500.75",
    "WON'T GO!",
    "left at 6 a.m., didn't he",
    "won 3-2 (again)",
    "isn't \u2018here\u2019 ,",
]
CLOSINGS = [".", "?!", '."', " .", "\u2026"]
ENGLISH = [line for line in LINES if strip_punctuation(line)] + [
    f"{opening}{person} {saying}{closing}"
    for opening, person, saying, closing in itertools.product(OPENINGS, PEOPLE, SAYINGS, CLOSINGS)
]

ODD = (
    "\u0130\u0131\u0307\u03a3\u03c3\u03c2\u00df\u1e9e\u212a\u2126\u03f4\u01c4\u01c5\u01c6\u0149\ufb01\u10d0\u1c90\u0345"
)
"""Letters whose cases are not one to one."""

CASED = [c for c in map(chr, range(sys.maxunicode + 1)) if not c == c.lower() == c.upper() == c.title()]
"""All letters of Unicode that have another case."""


def random_texts(count=3000, seed=0):
    """Random strings: from all of Unicode, and from the few characters that are difficult here."""
    rng = random.Random(seed)
    difficult = f"{MARKS} {MARKS} \t\u2028\u00a0aAbBzZ1-(){ODD}"
    for _ in range(count):
        share = rng.choice([0.0, 0.1, 0.5])
        size = rng.randrange(60)
        yield "".join(
            chr(rng.randrange(sys.maxunicode + 1)) if rng.random() < share else rng.choice(difficult)
            for _ in range(size)
        )


def by_regex(text):
    """Strip a text with regular expressions."""
    return re.sub(r"\s+", " ", re.sub("[,.!?'\"\u2018\u2019\u201c\u201d]", "", text.lower())).strip()


def strip_word(word):
    """The stripped word and the edit of a text of one word."""
    (stripped,), (edit,) = word_edits(word)
    return stripped, edit


class TestStripPunctuation:
    @pytest.mark.parametrize(
        ("text", "stripped"),
        [
            ("Don't go to the U.S., please!", "dont go to the us please"),
            ("3.5 of 1,000", "35 of 1000"),
            ("\u201cIt\u2019s \u2018fine\u2019,\u201d he said", "its fine he said"),
            ('A " lone mark ... leaves one space', "a lone mark leaves one space"),
            ("T1 (Sang-Hyeok): 50%; no\u2026", "t1 (sang-hyeok): 50%; no\u2026"),
            ('"...!?"', ""),
            (" \t\n", ""),
        ],
    )
    def test_examples(self, text, stripped):
        assert strip_punctuation(text) == stripped

    def test_equals_regular_expressions(self):
        for line in ENGLISH:
            assert strip_punctuation(line) == by_regex(line)

    def test_is_idempotent(self):
        for text in [*ENGLISH, *random_texts()]:
            assert strip_punctuation(strip_punctuation(text)) == strip_punctuation(text)

    def test_is_idempotent_for_any_character(self):
        alone = " ".join(map(chr, range(sys.maxunicode + 1)))
        in_words = " ".join(f"A{c} {c}a A{c}. a'{c}b" for c in CASED)
        for text in (alone, in_words):
            assert strip_punctuation(strip_punctuation(text)) == strip_punctuation(text)


class TestPackSentences:
    def test_sentences_are_packed_greedily(self):
        assert list(pack_sentences(["a b", "c  d", "e", "f g h"], 5)) == ["a b c d e", "f g h"]

    def test_overlong_sentence_stays_alone(self):
        assert list(pack_sentences(["a", "b c d e", "f", "g"], 3)) == ["a", "b c d e", "f g"]

    def test_no_word_is_lost_or_repeated(self):
        packed = list(pack_sentences(ENGLISH))
        assert " ".join(packed) == " ".join(" ".join(ENGLISH).split())
        assert max(len(text.split()) for text in packed) <= 150
        longest = max(len(line.split()) for line in ENGLISH)
        assert min(len(text.split()) for text in packed[:-1]) > 150 - longest, "greedily"

    def test_blank_sentences_are_dropped(self):
        assert list(pack_sentences(["", " "], 2)) == list(pack_sentences([])) == []
        assert list(pack_sentences(["a b", " ", "c"], 2)) == ["a b", "c"]

    def test_max_words_below_one_is_refused(self):
        with pytest.raises(InputError, match="1 or more"):
            list(pack_sentences(["a"], 0))


def restore(words, edits):
    """Apply edits to stripped words."""
    return " ".join(edit.apply(word) for word, edit in zip(words, edits, strict=True))


class TestRoundTrip:
    def test_corpus_has_hundreds_of_lines(self):
        assert len(ENGLISH) > 500

    def test_english_is_restored(self):
        for line in ENGLISH:
            words, edits = word_edits(line)
            assert " ".join(words) == strip_punctuation(line)
            assert restore(words, edits) == " ".join(line.split())

    def test_random_unicode_is_restored(self):
        n_texts = 0
        for text in random_texts():
            if not strip_punctuation(text):
                continue
            words, edits = word_edits(text)
            assert " ".join(words) == strip_punctuation(text)
            assert restore(words, edits) == " ".join(text.split())
            n_texts += 1
        assert n_texts > 2000

    def test_every_cased_letter_is_restored_in_every_position(self):
        text = " ".join(f"{c} {c}b A{c}b A{c} {c}.{c} '{c}'b{c}" for c in CASED)
        words, edits = word_edits(text)
        assert restore(words, edits) == text
        assert " ".join(words) == strip_punctuation(text)

    def test_all_short_words_of_marks_and_letters_are_restored(self):
        for letters in itertools.product("aB.'", repeat=5):
            word = "".join(letters)
            if strip_punctuation(word):
                stripped, edit = strip_word(word)
                assert edit.apply(stripped) == word


class TestWordEdits:
    @pytest.mark.parametrize(
        ("word", "stripped", "edit"),
        [
            ("dog", "dog", KEEP),
            ("-", "-", KEEP),
            ("dog,", "dog", Edit(after=",")),
            ('"Dog."', "dog", Edit('"', '."', Case.FIRST)),
            ("(Dog)", "(dog)", Edit(case=Case.FIRST)),
            ("I", "i", Edit(case=Case.FIRST)),
            ("AT&T", "at&t", Edit(case=Case.ALL)),
            ("'80s", "80s", Edit("'")),
            ("U.S.", "us", Edit("", ".", Case.ALL, (Change(-1, "insert", "."),))),
            ("don't", "dont", Edit(changes=(Change(-1, "insert", "'"),))),
            ("don\u2019t", "dont", Edit(changes=(Change(-1, "insert", "\u2019"),))),
            ("McCoy", "mccoy", Edit(case=Case.FIRST, changes=(Change(2, "upper"),))),
            ("DVDs", "dvds", Edit(case=Case.ALL, changes=(Change(-1, "lower"),))),
            ("3.5", "35", Edit(changes=(Change(-1, "insert", "."),))),
            ("1,000", "1000", Edit(changes=(Change(-3, "insert", ","),))),
            ("STRASSE", "strasse", Edit(case=Case.ALL)),
            ("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c2", Edit(case=Case.ALL)),
            ("\u212a", "k", Edit(changes=(Change(0, "write", "\u212a"),))),
            ("\u0130x", "i\u0307x", Edit(changes=(Change(0, "write", "\u0130"), Change(1, "write", "")))),
        ],
    )
    def test_examples(self, word, stripped, edit):
        assert strip_word(word) == (stripped, edit)
        assert edit.apply(stripped) == word

    @pytest.mark.parametrize(
        "words",
        [
            "I've You've They've",
            "1,000 20,000 300,000",
            "3.5 12.5",
            "it's that's dog's",
            "McCoy McKinley",
            "O'Neill O'Reilly",
        ],
    )
    def test_similar_words_share_an_edit(self, words):
        assert len(set(word_edits(words)[1])) == 1

    @pytest.mark.parametrize(
        ("text", "attached"),
        [
            ('He said " no', ["He", 'said "', "no"]),
            ('" Hello . "', ['" Hello . "']),
            ("... ' a - b", ["... ' a", "-", "b"]),
            ("a", ["a"]),
            ("", []),
            (" \n", []),
        ],
    )
    def test_stand_alone_marks_are_attached_to_a_word(self, text, attached):
        assert aligned_words(text) == attached
        words, edits = word_edits(text)
        assert [edit.apply(word) for word, edit in zip(words, edits, strict=True)] == attached

    @pytest.mark.parametrize("text", ["...", '" "', "\u2018\u2019", " ! \n"])
    def test_text_of_only_marks_is_refused(self, text):
        assert strip_punctuation(text) == ""
        with pytest.raises(InputError, match="no word"):
            word_edits(text)

    def test_any_edit_can_be_applied_to_any_word(self):
        """A model may predict an edit with changes at positions that the word does not have."""
        all_edits = {edit for line in ENGLISH for edit in word_edits(line)[1]}
        assert len(all_edits) > 100
        for edit, word in itertools.product(all_edits, ["", "a", "ab", "-", "extraordinary"]):
            written = any(change.kind == "write" for change in edit.changes)
            assert written or strip_punctuation(edit.apply(word)) == word, "only marks and capitals are added"

    def test_edits_are_frozen_and_have_slots(self):
        assert not hasattr(KEEP, "__dict__")
        assert len({KEEP, Edit(), Edit(after=".")}) == 2
        with pytest.raises(AttributeError):
            KEEP.after = "."


class TestEditVocabulary:
    TEXTS = ("The dog, the cat, the U.S.", "The cow.", "...", "", "A cow, an eBay dog.")

    def test_counts_equal_those_by_hand(self):
        vocabulary = EditVocabulary.from_texts(self.TEXTS, min_count=2)
        assert vocabulary.edits == (KEEP, Edit(case=Case.FIRST), Edit(after=","), Edit(after="."))
        assert vocabulary.counts == (3, 3, 3, 2)
        assert (vocabulary.min_count, vocabulary.rare_edits, vocabulary.rare_words) == (2, 2, 2)

    def test_index_of_rare_edits_is_no_label(self):
        vocabulary = EditVocabulary.from_texts(self.TEXTS, min_count=2)
        indices = [vocabulary.index(edit) for edit in word_edits("An eBay cow , a dog.")[1]]
        assert indices == [1, NO_LABEL, NO_LABEL, 0, 3]
        assert len(vocabulary) == 4

    @pytest.mark.parametrize("min_count", [1, 2, 20, 10**9])
    def test_every_word_is_counted_once(self, min_count):
        vocabulary = EditVocabulary.from_texts(ENGLISH, min_count)
        assert sum(vocabulary.counts) + vocabulary.rare_words == sum(
            len(strip_punctuation(line).split()) for line in ENGLISH
        )
        assert all(count >= min_count for count in vocabulary.counts[1:])
        assert vocabulary.counts[1:] == tuple(sorted(vocabulary.counts[1:], reverse=True))
        assert vocabulary.index(KEEP) == 0 and vocabulary.edits[0] == KEEP

    def test_order_of_the_texts_does_not_matter(self):
        shuffled = random.Random(1).sample(ENGLISH, len(ENGLISH))
        assert EditVocabulary.from_texts(ENGLISH, 2) == EditVocabulary.from_texts(shuffled, 2)

    def test_vocabulary_of_no_texts_only_keeps(self):
        vocabulary = EditVocabulary.from_texts([])
        assert (vocabulary.edits, vocabulary.counts, vocabulary.rare_edits, vocabulary.rare_words) == (
            (KEEP,),
            (0,),
            0,
            0,
        )

    def test_min_count_below_one_is_refused(self):
        with pytest.raises(InputError, match="1 or more"):
            EditVocabulary.from_texts(["a"], 0)
