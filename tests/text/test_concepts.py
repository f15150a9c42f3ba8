"""Concepts of a field: how often they occur, which are chosen, and where they stand in a text."""

from __future__ import annotations

import math
import pickle
import random
import re
import sys
import unicodedata
from collections import Counter

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.concepts import ConceptGraph, ConceptSet, Frequency, count_concepts, normalise_concept, word_runs

WORDS = ["cell", "cells", "gene", "of", "the", "heart", "attack", "x", "a1", "don't", "alzheimer's"]


def some_texts(rng, count, words=WORDS, max_words=30):
    """Texts with all that parts words, or does not."""
    signs = [" "] * 8 + ["  ", "\n", "-", "-", ". ", ", ", " (", ") ", " - ", "/"]
    cases = (str, str.upper, str.title)
    return [
        "".join(rng.choice(cases)(rng.choice(words)) + rng.choice(signs) for _ in range(rng.randrange(max_words)))
        for _ in range(count)
    ]


def naive_counts(texts, max_words):
    """One regular expression for each length, tried at every character."""
    word, found = r"[a-z0-9]+(?:'[a-z0-9]+)*", Counter()
    for text in texts:
        for more in range(max_words):
            phrase = rf"(?<![a-z0-9])(?<![a-z0-9]')(?=({word}(?:(?:\s+|-){word}){{{more}}})(?![a-z0-9]|'[a-z0-9]))"
            for match in re.finditer(phrase, text.lower()):
                found[re.sub(r"\s+|-", " ", match.group(1))] += 1
    return found


def of(*concepts):
    return ConceptSet(frozenset(concepts))


def found(concepts, text):
    return [text[begin:end] for begin, end in concepts.find(text)]


# Words and counts


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", []),
        (" .,;! ", []),
        ("Heart attack", [["heart", "attack"]]),
        ("the cell. Membrane", [["the", "cell"], ["membrane"]]),
        ("don't, DON’T", [["don't"], ["don't"]]),
        ("'quoted' words’", [["quoted"], ["words"]]),
        ("state-of-the-art", [["state", "of", "the", "art"]]),
        ("dose–response curve", [["dose", "response", "curve"]]),
        ("cut - off -- here", [["cut"], ["off"], ["here"]]),
        ("snake_case _stress_", [["snake_case"], ["stress"]]),
        ("il-2\n\tand CD8+ cells", [["il", "2", "and", "cd8"], ["cells"]]),
        ("Straße ΟΔΟΣ", [["straße", "οδος"]]),
        ("cafe\u0301 caf\u00e9", [["caf\u00e9", "caf\u00e9"]]),
        ("हिन्दी भाषा", [["हिन्दी", "भाषा"]]),
        ("\u0301a", [["a"]]),
    ],
)
def test_words_and_what_parts_them(text, runs):
    assert [[word for word, _, _ in run] for run in word_runs(text)] == runs


def test_a_word_stands_where_it_says():
    text = "İİ İstanbul'da, ﬁne CAFE\u0301s"
    places = [(begin, end) for run in word_runs(text) for _, begin, end in run]
    assert [text[begin:end] for begin, end in places] == ["İİ", "İstanbul'da", "ﬁne", "CAFE\u0301s"]


def test_the_plain_form_of_a_word_is_its_own_plain_form():
    """Else a concept would change when it is written and read, and be found no more."""
    for sign in map(chr, range(sys.maxunicode + 1)):
        if sign.isalnum() and (sign != sign.lower() or not unicodedata.is_normalized("NFC", sign)):
            plain = normalise_concept(sign)
            assert plain is not None and normalise_concept(plain) == plain, hex(ord(sign))


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_a_naive_counter(seed):
    texts = some_texts(random.Random(seed), 20)
    counted = count_concepts(texts, max_words=4)
    assert counted.counts == naive_counts(texts, 4)
    assert counted.words == sum(naive_counts(texts, 1).values()) > 0


def test_counting_among_some_gives_the_same_counts_of_those():
    texts = some_texts(random.Random(0), 50)
    whole, some = count_concepts(texts, 3), {"cell", "gene of", "heart attack", "not there", "of the cell gene"}
    part = count_concepts(iter(texts), 3, vocabulary=some)
    assert part.words == whole.words
    assert part.counts == {name: whole.counts[name] for name in some if whole.counts[name]}


def test_a_corpus_of_nothing_counts_nothing():
    for texts in ([], ["", " \n", "?!"]):
        assert (count_concepts(texts).words, len(count_concepts(texts).counts)) == (0, 0)


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(InputError, match="list of texts, not one string"):
        count_concepts("cell by cell")
    with pytest.raises(InputError, match="1 or more"):
        count_concepts(["cell"], max_words=0)


# Choosing with a graph


@pytest.mark.parametrize("seed", range(20))
def test_the_five_steps_give_what_they_give_by_hand(seed):
    networkx = pytest.importorskip("networkx")
    rng = random.Random(seed)
    words = [f"w{number}" for number in range(30)]
    domain = some_texts(rng, 40, words[:22])
    general = some_texts(rng, 15, words[6:])
    nodes = [*words, "w1 w2", "w3 w4 w5", "w2 w9"]
    edges = [(rng.choice(nodes), rng.choice(nodes)) for _ in range(60)]
    frequency, seeds, hops = rng.choice([5, 20, 30]), rng.choice([1, 3, 9]), rng.choice([0, 1, 2])

    graph = networkx.Graph([edge for edge in edges if edge[0] != edge[1]])
    ours, theirs = naive_counts(domain, 4), naive_counts(general, 4)
    sizes = [sum(naive_counts(texts, 1).values()) for texts in (domain, general)]
    often = sorted((-graph.degree(name), name) for name in graph if ours[name] > frequency)
    reached = set()
    for _, name in often[:seeds]:
        reached |= set(networkx.single_source_shortest_path_length(graph, name, cutoff=hops))
    wanted = {name for name in reached if theirs[name] <= frequency * sizes[1] / sizes[0] and ours[name] > 0}

    made = {"frequency": frequency, "seeds": seeds, "hops": hops}
    if wanted:
        built = ConceptSet.from_graph(iter(domain), iter(general), ConceptGraph.from_edges(edges), **made)
        assert built.concepts == wanted
        assert [built.notes[name] for name in ("domain_words", "general_words", "reached")] == [*sizes, len(reached)]
    else:
        with pytest.raises(InputError):
            ConceptSet.from_graph(domain, general, ConceptGraph.from_edges(edges), **made)


HUB = [("the", f"n{number}") for number in range(9)] + [("cell", "wall"), ("cell", "gene"), ("gene", "dna")]


def from_graph(domain, general=("other words",), edges=HUB, **choice):
    made = {"frequency": 1, "seeds": 1, "hops": 0, **choice}
    return ConceptSet.from_graph(domain, general, ConceptGraph.from_edges(edges), **made)


def test_the_frequent_are_ranked_not_the_ranked_filtered():
    """By degree alone "the" would be the one seed, and fall at the frequency: nothing would be left."""
    assert from_graph(["cell cell cell the gene gene"]).concepts == {"cell"}


def test_of_seeds_with_as_many_neighbours_the_first_by_name_is_taken():
    edges = [("b", "z"), ("a", "y"), ("c", "x")]
    assert from_graph(["c c b b a a"], edges=edges).concepts == {"a"}
    assert from_graph(["c c b b a a"], edges=edges[::-1], seeds=2).concepts == {"a", "b"}


def test_hops_bring_rare_neighbours_and_the_missing_stay_out():
    domain = ["cell cell cell gene dna"]
    assert from_graph(domain, hops=0).concepts == {"cell"}
    assert from_graph(domain, hops=1).concepts == {"cell", "gene"}, "wall is a neighbour but never occurs"
    assert from_graph(domain, hops=2).concepts == {"cell", "gene", "dna"}


def test_the_frequency_must_be_exceeded():
    assert from_graph(["cell cell cell"], frequency=2).concepts == {"cell"}
    with pytest.raises(InputError, match="more than 3 times"):
        from_graph(["cell cell cell"], frequency=3)


def test_what_is_known_depends_on_the_sizes_of_the_corpora():
    """Six times in 12 words of the domain; a general corpus of twice the size may have twice the frequency of 4."""
    domain, common, rare = ["cell gene"] * 6, ["cell"] * 9, ["cell"] * 8 + ["gene"]
    filled = [texts + ["word"] * 15 for texts in (common, rare)]
    choice = {"frequency": 4, "seeds": 9, "hops": 0}
    assert from_graph(domain, filled[0], **choice).concepts == {"gene"}, "9 > 4 * 24 / 12"
    assert from_graph(domain, filled[1], **choice).concepts == {"cell", "gene"}, "8 is not more than 8"
    strict = {**choice, "frequency": Frequency(4, general_share=1 / 3)}
    assert from_graph(domain, ["cell"], **strict).concepts == {"cell", "gene"}
    assert from_graph(domain, ["cell cell"], **strict).concepts == {"gene"}, "2 > 4 / 3"
    stricter = {**choice, "frequency": Frequency(4, general_share=0.25)}
    assert from_graph(domain, ["cell", "gene gene"], **stricter).concepts == {"cell"}, "2 > 1"


def test_a_rate_is_a_count_that_grows_with_the_corpus():
    domain = ["cell cell cell gene"]
    for times in (1, 50):
        for rate, wanted in ((700_000, {"cell"}), (240_000, {"cell", "gene"})):
            choice = {"frequency": Frequency(per_million=rate), "seeds": 9}
            assert from_graph(domain * times, **choice).concepts == wanted
    assert Frequency(per_million=150).domain_count(2_000_000) == 300
    assert Frequency(200_000).general_count(3_000, 1_000) == pytest.approx(200_000 / 3)
    assert all(Frequency(size).general_count(size, 1) == 1 for size in range(1, 1000)), "rounding throws nothing out"


@pytest.mark.parametrize(
    "wrong",
    [{}, {"count": 1, "per_million": 1}, {"count": -1}, {"per_million": math.nan}, {"count": 1, "general_share": -0.1}],
)
def test_a_frequency_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        Frequency(**wrong)


@pytest.mark.parametrize(
    ("domain", "general", "choice", "message"),
    [
        ([], ["word"], {}, "The domain corpus contains no words"),
        (["cell cell"], [" "], {}, "The general corpus contains no words"),
        (["no such thing"], ["word"], {}, "No concept of the graph occurs in the domain's 3 words; take a graph"),
        (["cell"] * 9, ["x"], {"frequency": 200_000}, "200,000 times in the domain's 9 words .*'cell', has 9.*lower"),
        (["cell"] * 9, ["cell"] * 9, {"frequency": 2}, "1 concepts reached .* more than 2 times .* 9 words; raise"),
        (["cell"] * 9, ["x"], {"seeds": 0}, "seeds = 0 is too small; give 1 or more"),
        (["cell"] * 9, ["x"], {"hops": -1}, "hops = -1 is too small; give 0 or more"),
        ("cell", ["x"], {}, "not one string"),
    ],
)
def test_an_empty_set_says_why_and_what_to_do(domain, general, choice, message):
    with pytest.raises(InputError, match=message):
        from_graph(domain, general, **choice)


# Choosing by ratio


@pytest.mark.parametrize("seed", range(10))
def test_the_top_by_log_ratio(seed):
    rng = random.Random(seed)
    words = [f"w{number}" for number in range(12)] + ["x", "7"]
    domain, general = some_texts(rng, 30, words), some_texts(rng, 30, words[4:])
    ours, theirs = naive_counts(domain, 3), naive_counts(general, 3)
    sizes = [sum(naive_counts(texts, 1).values()) for texts in (domain, general)]

    def ratio(name):
        return math.log((ours[name] + 1) / sizes[0]) - math.log((theirs[name] + 1) / sizes[1])

    able = [name for name, count in ours.items() if count >= 3 and re.search(r"w\d", name)]
    able = [name for name in able if ours[name] / sizes[0] > theirs[name] / sizes[1]]
    ranked = sorted(able, key=lambda name: (-round(ratio(name), 9), -ours[name], name))
    for top in (1, 5, 20, 10_000):
        made = ConceptSet.from_log_ratio(iter(domain), iter(general), top=top, min_count=3, max_words=3)
        assert made.concepts == set(ranked[:top])
        assert made.notes["special"] == len(ranked)


def test_common_words_numbers_and_letters_are_no_concepts():
    domain = ["the cell has 22 walls and a wall", "the cell has 22 p 7 genes and a gene"] * 5
    general = ["the man has a hat and a coat and the dog has a bone"] * 5
    made = ConceptSet.from_log_ratio(domain, general, top=1000, max_words=1)
    assert made.concepts == {"cell", "walls", "wall", "genes", "gene"}
    longer = ConceptSet.from_log_ratio(domain, general, top=1000, max_words=2).concepts
    assert "p 7" not in longer and "22 p" not in longer and "22 walls" in longer


@pytest.mark.parametrize(
    ("domain", "general", "choice", "message"),
    [
        ([], ["word"], {}, "The domain corpus contains no words"),
        (["cell"] * 5, [], {}, "The general corpus contains no words"),
        (["cell"] * 4, ["word"], {}, "No phrase occurs 5 times in the domain's 4 words; lower the minimum"),
        (["7 a"] * 9, ["word"], {}, "No phrase occurs 5 times"),
        (["cell"] * 9, ["cell"], {}, "Nothing is more frequent in the domain"),
        (["cell"] * 9, ["word"], {"top": 0}, "top = 0 is too small"),
        (["cell"] * 9, ["word"], {"min_count": 0}, r"min_count \(--least\) = 0 is too small"),
    ],
)
def test_no_ratio_without_something_to_divide(domain, general, choice, message):
    with pytest.raises(InputError, match=message):
        ConceptSet.from_log_ratio(domain, general, **{"top": 10, **choice})


# Files


def test_a_set_is_written_sorted_and_read_again(tmp_path):
    odd = ["Heart  Attack", "İstanbul", "cafe\u0301", "dose-response", "don’t"]
    concepts = of("gene", "one two three four five", *odd)
    concepts.write(tmp_path / "new" / "concepts.txt")
    written = (tmp_path / "new" / "concepts.txt").read_bytes().decode()
    names = ["caf\u00e9", "don't", "dose response", "gene", "heart attack", "i\u0307stanbul", "one two three four five"]
    assert written == "".join(f"{name}\n" for name in names)
    assert ConceptSet.read(str(tmp_path / "new" / "concepts.txt")) == concepts
    assert ConceptSet.read(tmp_path / "new" / "concepts.txt").notes["made"] == "file"


def test_a_file_made_by_hand_is_read(tmp_path):
    (tmp_path / "c.txt").write_bytes("\ufeffGene\r\n\r\n  heart attack \r\ngene".encode())
    assert ConceptSet.read(tmp_path / "c.txt").concepts == {"gene", "heart attack"}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("\n \n", DataFileError, "holds no concept; write one per line"),
        ("gene\nc++\n", DataFileError, "line 2: 'c\\+\\+' is not made of words"),
        ("gene, cell\n", DataFileError, "line 1: 'gene, cell' is not"),
    ],
)
def test_a_file_without_usable_concepts_is_one_sentence(content, error, message, tmp_path):
    (tmp_path / "c.txt").write_text(content)
    with pytest.raises(error, match=message):
        ConceptSet.read(tmp_path / "c.txt")


def test_a_set_holds_something_that_can_be_found():
    with pytest.raises(InputError, match="at least one concept"):
        of()
    for odd in ("", "c++", "gene.", "a, b"):
        with pytest.raises(InputError, match="would never be found"):
            of("gene", odd)


def test_sets_are_equal_by_their_concepts_and_can_be_sent_to_another_process():
    one, other = of("gene", "cell wall"), ConceptSet(frozenset({"Cell wall", "GENE"}), {"made": "by hand"})
    assert one == other and hash(one) == hash(other) and len(one) == 2
    one.find("gene")
    assert pickle.loads(pickle.dumps(one)).find("a cell wall") == [(2, 11)]


# Finding


def brute_force(concepts, text):
    """From each place in turn, the longest piece of text that cuts no word and reads as a concept."""
    letter = [False] * len(text)
    for place, sign in enumerate(text):
        mark = unicodedata.category(sign).startswith("M") or sign in "\u200c\u200d"
        letter[place] = sign.isalnum() or (mark and place > 0 and letter[place - 1])

    def joins(place):
        return 0 < place < len(text) - 1 and text[place] in "'’_" and letter[place - 1] and text[place + 1].isalnum()

    def cuts(place):
        inside = [0 <= at < len(text) and (letter[at] or joins(at)) for at in (place - 1, place)]
        return all(inside)

    def reads(piece):
        return unicodedata.normalize("NFC", re.sub(r"\s+|[-‐‑–]", " ", piece.lower())).replace("’", "'")

    edges = [place for place in range(len(text) + 1) if not cuts(place)]
    spans, free = [], 0
    for begin in edges:
        ends = [end for end in edges if end > begin >= free and reads(text[begin:end]) in concepts]
        if ends:
            free = ends[-1]
            spans.append((begin, free))
    return spans


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_what_brute_force_finds(seed):
    rng = random.Random(seed)
    several = 0
    for _ in range(50):
        concepts, text = some_search(rng)
        spans = brute_force(concepts, text)
        assert ConceptSet(frozenset(concepts)).find(text) == spans, (concepts, text)
        several += len(spans) > 1
    assert several > 10, "else there is too little to compare"


def some_search(rng):
    """Concepts, and a text that has some of them and much that looks like them."""
    words = ["a", "b", "ab", "é", "i\u0307", "a'b", "a_b", "ka", "1"]
    concepts = {" ".join(rng.choices(words, k=rng.choice([1, 2, 2, 3, 4, 5]))) for _ in range(rng.randrange(1, 25))}
    pieces = ["a", "b", "A", "B", "1", "é", "e\u0301", "E\u0301", "İ", "\u212aa", "a’b", "\u0301", "\u200d", ""]
    signs = [" "] * 9 + ["-", "–", "'", "_", ".", "  ", "\n", " -", "\u00a0", "\U0001f600", "", ""]
    text = "".join(rng.choice(pieces) + rng.choice(signs) for _ in range(rng.randrange(40)))
    return concepts, text


def test_brute_force_finds_something_to_compare_with():
    assert brute_force({"a b", "a"}, "A-b, aa a") == [(0, 3), (8, 9)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("nothing here", []),
        ("Heart attack", ["Heart attack"]),
        ("a heart-attack", ["heart-attack"]),
        ("heart\n  attack!", ["heart\n  attack"]),
        ("(HEART) attack", ["HEART"]),
        ("hearts sweetheart heartless heart2", []),
        ("heart's heart", ["heart"]),
        ("heart_attack", []),
        ("heart attack of the heart", ["heart attack", "heart"]),
        ("heart attack wave", ["heart attack wave"]),
        ("heart attack waves", ["heart attack"]),
        ("heart heart attack", ["heart", "heart attack"]),
        ("wave form wave form analysis", ["form wave", "form analysis"]),
    ],
)
def test_the_longest_concept_is_found_at_word_boundaries(text, wanted):
    concepts = of("heart", "heart attack", "heart attack wave", "form wave", "form analysis")
    assert found(concepts, text) == wanted


def test_places_are_right_where_lower_case_is_longer():
    text = "İİİ İstanbul İSTANBUL, gene"
    assert len(text.lower()) > len(text)
    assert found(of("İstanbul", "gene"), text) == ["İstanbul", "İSTANBUL", "gene"]


def test_concepts_in_other_scripts():
    assert found(of("ΟΔΟΣ", "größe"), "Η οδος, GRÖßE. Größen") == ["οδος", "GRÖßE"]
    assert found(of("हिन्दी"), "हिन्दी हिन्द") == ["हिन्दी"], "a word is not cut at its vowels"
    assert found(of("клетка"), "Клетка клетками") == ["Клетка"]
    assert found(of("naïve bayes"), "A NAI\u0308VE Bayes") == ["NAI\u0308VE Bayes"]


def test_each_word_is_looked_at_a_few_times_however_long_the_text():
    """The dear look-up is the one that joins words; count it."""
    looks = Counter()

    class Counting(frozenset):
        def __contains__(self, name):
            looks["joined"] += 1
            return super().__contains__(name)

    concepts = of("a a a b", "a b", "c")
    object.__setattr__(concepts, "concepts", Counting(concepts.concepts))
    for words in (1_000, 10_000):
        looks.clear()
        assert concepts.find("a " * words) == []
        assert looks["joined"] <= 2 * words
