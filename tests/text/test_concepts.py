"""Tests of `decoder2vec.text.concepts`: counting, graphs, selection, files and search."""

from __future__ import annotations

import gzip
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


def random_texts(rng, count, words=WORDS, max_words=30):
    """Texts with all signs that separate words, and others."""
    signs = [" "] * 8 + ["  ", "\n", "-", "-", ". ", ", ", " (", ") ", " - ", "/"]
    cases = (str, str.upper, str.title)
    return [
        "".join(rng.choice(cases)(rng.choice(words)) + rng.choice(signs) for _ in range(rng.randrange(max_words)))
        for _ in range(count)
    ]


def naive_counts(texts, max_words):
    """One regular expression for each length, tried at every character."""
    word, counts = r"[a-z0-9]+(?:'[a-z0-9]+)*", Counter()
    for text in texts:
        for more in range(max_words):
            phrase = rf"(?<![a-z0-9])(?<![a-z0-9]')(?=({word}(?:(?:\s+|-){word}){{{more}}})(?![a-z0-9]|'[a-z0-9]))"
            for match in re.finditer(phrase, text.lower()):
                counts[re.sub(r"\s+|-", " ", match.group(1))] += 1
    return counts


def concept_set(*concepts):
    return ConceptSet(frozenset(concepts))


def matches(concepts, text):
    return [text[begin:end] for begin, end in concepts.find(text)]


# --- words and counts -----------------------------------------------------------------------------------------------


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
def test_words_are_grouped_into_runs(text, runs):
    assert [[word for word, _, _ in run] for run in word_runs(text)] == runs


def test_word_offsets_point_into_the_original_text():
    text = "İİ İstanbul'da, ﬁne CAFE\u0301s"
    spans = [(begin, end) for run in word_runs(text) for _, begin, end in run]
    assert [text[begin:end] for begin, end in spans] == ["İİ", "İstanbul'da", "ﬁne", "CAFE\u0301s"]


def test_normalisation_is_idempotent():
    """Otherwise a concept would change when it is written and read, and would no longer be found."""
    for sign in map(chr, range(sys.maxunicode + 1)):
        if sign.isalnum() and (sign != sign.lower() or not unicodedata.is_normalized("NFC", sign)):
            normalised = normalise_concept(sign)
            assert normalised is not None and normalise_concept(normalised) == normalised, hex(ord(sign))


@pytest.mark.parametrize("seed", range(20))
def test_counts_equal_a_naive_counter(seed):
    texts = random_texts(random.Random(seed), 20)
    counts = count_concepts(texts, max_words=4)
    assert counts.counts == naive_counts(texts, 4)
    assert counts.words == sum(naive_counts(texts, 1).values()) > 0


def test_counts_of_a_vocabulary_equal_the_full_counts():
    texts = random_texts(random.Random(0), 50)
    full, vocabulary = count_concepts(texts, 3), {"cell", "gene of", "heart attack", "not there", "of the cell gene"}
    partial = count_concepts(iter(texts), 3, vocabulary=vocabulary)
    assert partial.words == full.words
    assert partial.counts == {name: full.counts[name] for name in vocabulary if full.counts[name]}


def test_empty_corpus_has_no_counts():
    for texts in ([], ["", " \n", "?!"]):
        assert (count_concepts(texts).words, len(count_concepts(texts).counts)) == (0, 0)


def test_invalid_corpus_or_max_words_is_refused():
    with pytest.raises(InputError, match="list of texts, not one string"):
        count_concepts("cell by cell")
    with pytest.raises(InputError, match="1 or more"):
        count_concepts(["cell"], max_words=0)


# --- graphs ---------------------------------------------------------------------------------------------------------


def random_edges(rng, nodes=40, edges=50):
    return [(f"n{rng.randrange(nodes)}", f"n{rng.randrange(nodes)}") for _ in range(edges)]


@pytest.mark.parametrize("seed", range(30))
def test_within_equals_networkx(seed):
    networkx = pytest.importorskip("networkx")
    rng = random.Random(seed)
    edges = random_edges(rng)
    graph, reference = ConceptGraph.from_edges(edges), networkx.Graph(edges)
    seeds = rng.sample(sorted(reference), 3)
    for hops in range(7):
        reachable = [networkx.single_source_shortest_path_length(reference, start, cutoff=hops) for start in seeds]
        assert graph.within(seeds, hops) == set().union(*reachable)
    reference.remove_edges_from(list(networkx.selfloop_edges(reference)))
    assert {name: graph.degree(name) for name in graph.neighbours} == dict(reference.degree())


def test_within_ends_at_the_component():
    graph = ConceptGraph.from_edges([("a", "b"), ("b", "c"), ("x", "y")])
    assert graph.within(["a"], 10**9) == {"a", "b", "c"}
    assert graph.within([], 3) == set()
    with pytest.raises(InputError, match="0 or more"):
        graph.within(["a"], -1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("g.tsv", "Heart_attack\theart\nheart attack\tDon't\n"),
        ("g.csv", "heart_attack,heart\r\n\r\nheart-attack, don’t\r\n"),
        ("g.txt", '"heart attack","heart"\n"don\'t",heart_attack\n'),
        ("g.tsv", "heart\theart_attack\nheart_attack\theart\nheart\theart\nheart attack\tdon't\n"),
        (
            "g.csv.gz",
            "/c/en/heart_attack/n,/c/en/heart\n/c/en/heart_attack/n/wn/state,/c/en/don't\n/c/de/herz,/c/en/heart\n",
        ),
        (
            "conceptnet.csv.gz",
            "/a/[/r/IsA/,/c/en/heart_attack/n/,/c/en/heart/]\t/r/IsA\t/c/en/heart_attack/n\t/c/en/heart\t{}\n"
            '/a/[...]\t/r/Synonym\t/c/fr/cœur\t/c/en/heart\t{"weight": 1.0}\n'
            '/a/[...]\t/r/ExternalURL\t/c/en/heart\thttp://dbpedia.org/resource/Heart\t{"weight": 1.0}\n'
            '/a/[...]\t/r/RelatedTo\t/c/en/don\'t\t/c/en/heart_attack\t{"weight": 1.0, "text": "a\\tb"}\n',
        ),
    ],
)
def test_graph_is_read_from_tables_and_conceptnet(name, content, tmp_path):
    file = tmp_path / name
    file.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    expected = {"heart attack": {"heart", "don't"}, "heart": {"heart attack"}, "don't": {"heart attack"}}
    assert ConceptGraph.read(file).neighbours == expected


def test_paths_lead_over_names_that_no_text_contains():
    graph = ConceptGraph.from_edges([("cell", "c++"), ("C++", "gene")])
    assert graph.within(["cell"], 2) == {"cell", "c++", "gene"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no edge between two concepts in the language 'en'"),
        ("/c/de/herz\t/c/de/blut\n", "no edge"),
        ("a\tb\nc\n", "line 2: an edge is two names"),
        ("a\tb\tc\n", "line 1: an edge is two names"),
        ("a,\n", "line 1: an edge is two names"),
        ("a,_\n", "line 1: an edge is two names"),
        ("x" * 200_000, "line 1: an edge is two names"),
    ],
)
def test_invalid_graph_file_names_the_line(content, message, tmp_path):
    (tmp_path / "g.tsv").write_text(content)
    with pytest.raises(DataFileError, match=message):
        ConceptGraph.read(tmp_path / "g.tsv")


def test_graph_of_another_language_is_read(tmp_path):
    (tmp_path / "g.tsv").write_text("/c/de/herz\t/c/de/blut\n/c/en/heart\t/c/en/blood\n")
    assert set(ConceptGraph.read(tmp_path / "g.tsv", language="de").neighbours) == {"herz", "blut"}


# --- selection with a graph -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_graph_selection_equals_networkx(seed):
    networkx = pytest.importorskip("networkx")
    rng = random.Random(seed)
    words = [f"w{number}" for number in range(30)]
    domain = random_texts(rng, 40, words[:22])
    general = random_texts(rng, 15, words[6:])
    nodes = [*words, "w1 w2", "w3 w4 w5", "w2 w9"]
    edges = [(rng.choice(nodes), rng.choice(nodes)) for _ in range(60)]
    frequency, seeds, hops = rng.choice([5, 20, 30]), rng.choice([1, 3, 9]), rng.choice([0, 1, 2])

    graph = networkx.Graph([edge for edge in edges if edge[0] != edge[1]])
    domain_counts, general_counts = naive_counts(domain, 4), naive_counts(general, 4)
    sizes = [sum(naive_counts(texts, 1).values()) for texts in (domain, general)]
    ranked_seeds = sorted((-graph.degree(name), name) for name in graph if domain_counts[name] > frequency)
    reached = set()
    for _, name in ranked_seeds[:seeds]:
        reached |= set(networkx.single_source_shortest_path_length(graph, name, cutoff=hops))
    expected = {
        name for name in reached if general_counts[name] <= frequency * sizes[1] / sizes[0] and domain_counts[name] > 0
    }

    settings = {"frequency": frequency, "seeds": seeds, "hops": hops}
    if expected:
        built = ConceptSet.from_graph(iter(domain), iter(general), ConceptGraph.from_edges(edges), **settings)
        assert built.concepts == expected
        assert [built.notes[name] for name in ("domain_words", "general_words", "reached")] == [*sizes, len(reached)]
    else:
        with pytest.raises(InputError):
            ConceptSet.from_graph(domain, general, ConceptGraph.from_edges(edges), **settings)


HUB = [("the", f"n{number}") for number in range(9)] + [("cell", "wall"), ("cell", "gene"), ("gene", "dna")]


def from_graph(domain, general=("other words",), edges=HUB, **choice):
    settings = {"frequency": 1, "seeds": 1, "hops": 0, **choice}
    return ConceptSet.from_graph(domain, general, ConceptGraph.from_edges(edges), **settings)


def test_frequency_filter_comes_before_ranking_by_degree():
    """By degree alone "the" would be the only seed, and be dropped for its frequency: nothing would be left."""
    assert from_graph(["cell cell cell the gene gene"]).concepts == {"cell"}


def test_seeds_of_equal_degree_are_ordered_by_name():
    edges = [("b", "z"), ("a", "y"), ("c", "x")]
    assert from_graph(["c c b b a a"], edges=edges).concepts == {"a"}
    assert from_graph(["c c b b a a"], edges=edges[::-1], seeds=2).concepts == {"a", "b"}


def test_hops_add_neighbours_that_occur_in_the_domain():
    domain = ["cell cell cell gene dna"]
    assert from_graph(domain, hops=0).concepts == {"cell"}
    assert from_graph(domain, hops=1).concepts == {"cell", "gene"}, "wall is a neighbour but never occurs"
    assert from_graph(domain, hops=2).concepts == {"cell", "gene", "dna"}


def test_seed_must_exceed_the_frequency():
    assert from_graph(["cell cell cell"], frequency=2).concepts == {"cell"}
    with pytest.raises(InputError, match="more than 3 times"):
        from_graph(["cell cell cell"], frequency=3)


def test_general_threshold_depends_on_corpus_sizes():
    """Six times in 12 words of the domain; a general corpus twice as large may have twice the frequency of 4."""
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


def test_rate_per_million_scales_with_the_corpus():
    domain = ["cell cell cell gene"]
    for times in (1, 50):
        for rate, expected in ((700_000, {"cell"}), (240_000, {"cell", "gene"})):
            choice = {"frequency": Frequency(per_million=rate), "seeds": 9}
            assert from_graph(domain * times, **choice).concepts == expected
    assert Frequency(per_million=150).domain_count(2_000_000) == 300
    assert Frequency(200_000).general_count(3_000, 1_000) == pytest.approx(200_000 / 3)
    assert all(Frequency(size).general_count(size, 1) == 1 for size in range(1, 1000)), "rounding drops nothing"


@pytest.mark.parametrize(
    "wrong",
    [{}, {"count": 1, "per_million": 1}, {"count": -1}, {"per_million": math.nan}, {"count": 1, "general_share": -0.1}],
)
def test_invalid_frequency_is_refused(wrong):
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
def test_empty_graph_selection_explains_why(domain, general, choice, message):
    with pytest.raises(InputError, match=message):
        from_graph(domain, general, **choice)


# --- selection by log ratio -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_log_ratio_ranks_phrases(seed):
    rng = random.Random(seed)
    words = [f"w{number}" for number in range(12)] + ["x", "7"]
    domain, general = random_texts(rng, 30, words), random_texts(rng, 30, words[4:])
    domain_counts, general_counts = naive_counts(domain, 3), naive_counts(general, 3)
    sizes = [sum(naive_counts(texts, 1).values()) for texts in (domain, general)]

    def ratio(name):
        return math.log((domain_counts[name] + 1) / sizes[0]) - math.log((general_counts[name] + 1) / sizes[1])

    eligible = [name for name, count in domain_counts.items() if count >= 3 and re.search(r"w\d", name)]
    eligible = [name for name in eligible if domain_counts[name] / sizes[0] > general_counts[name] / sizes[1]]
    ranked = sorted(eligible, key=lambda name: (-round(ratio(name), 9), -domain_counts[name], name))
    for top in (1, 5, 20, 10_000):
        chosen = ConceptSet.from_log_ratio(iter(domain), iter(general), top=top, min_count=3, max_words=3)
        assert chosen.concepts == set(ranked[:top])
        assert chosen.notes["special"] == len(ranked)


def test_common_words_numbers_and_letters_are_excluded():
    domain = ["the cell has 22 walls and a wall", "the cell has 22 p 7 genes and a gene"] * 5
    general = ["the man has a hat and a coat and the dog has a bone"] * 5
    chosen = ConceptSet.from_log_ratio(domain, general, top=1000, max_words=1)
    assert chosen.concepts == {"cell", "walls", "wall", "genes", "gene"}
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
def test_empty_log_ratio_selection_explains_why(domain, general, choice, message):
    with pytest.raises(InputError, match=message):
        ConceptSet.from_log_ratio(domain, general, **{"top": 10, **choice})


# --- files ----------------------------------------------------------------------------------------------------------


def test_set_is_written_sorted_and_read_back(tmp_path):
    unnormalised = ["Heart  Attack", "İstanbul", "cafe\u0301", "dose-response", "don’t"]
    concepts = concept_set("gene", "one two three four five", *unnormalised)
    concepts.write(tmp_path / "new" / "concepts.txt")
    written = (tmp_path / "new" / "concepts.txt").read_bytes().decode()
    names = ["caf\u00e9", "don't", "dose response", "gene", "heart attack", "i\u0307stanbul", "one two three four five"]
    assert written == "".join(f"{name}\n" for name in names)
    assert ConceptSet.read(str(tmp_path / "new" / "concepts.txt")) == concepts
    assert ConceptSet.read(tmp_path / "new" / "concepts.txt").notes["made"] == "file"


def test_hand_written_file_is_read(tmp_path):
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
def test_file_without_valid_concepts_is_refused(content, error, message, tmp_path):
    (tmp_path / "c.txt").write_text(content)
    with pytest.raises(error, match=message):
        ConceptSet.read(tmp_path / "c.txt")


def test_set_refuses_no_or_invalid_concepts():
    with pytest.raises(InputError, match="at least one concept"):
        concept_set()
    for invalid in ("", "c++", "gene.", "a, b"):
        with pytest.raises(InputError, match="would never be found"):
            concept_set("gene", invalid)


def test_sets_compare_by_concepts_and_can_be_pickled():
    first, second = concept_set("gene", "cell wall"), ConceptSet(frozenset({"Cell wall", "GENE"}), {"made": "by hand"})
    assert first == second and hash(first) == hash(second) and len(first) == 2
    first.find("gene")
    assert pickle.loads(pickle.dumps(first)).find("a cell wall") == [(2, 11)]


# --- search ---------------------------------------------------------------------------------------------------------


def brute_force(concepts, text):
    """From each index in turn, the longest piece of text that cuts no word and is a concept when normalised."""
    letter = [False] * len(text)
    for index, sign in enumerate(text):
        is_mark = unicodedata.category(sign).startswith("M") or sign in "\u200c\u200d"
        letter[index] = sign.isalnum() or (is_mark and index > 0 and letter[index - 1])

    def joins_letters(index):
        return 0 < index < len(text) - 1 and text[index] in "'’_" and letter[index - 1] and text[index + 1].isalnum()

    def cuts_word(index):
        inside = [
            0 <= neighbour < len(text) and (letter[neighbour] or joins_letters(neighbour))
            for neighbour in (index - 1, index)
        ]
        return all(inside)

    def normalise(piece):
        return unicodedata.normalize("NFC", re.sub(r"\s+|[-‐‑–]", " ", piece.lower())).replace("’", "'")

    edges = [index for index in range(len(text) + 1) if not cuts_word(index)]
    spans, free = [], 0
    for begin in edges:
        ends = [end for end in edges if end > begin >= free and normalise(text[begin:end]) in concepts]
        if ends:
            free = ends[-1]
            spans.append((begin, free))
    return spans


@pytest.mark.parametrize("seed", range(20))
def test_find_equals_brute_force(seed):
    rng = random.Random(seed)
    with_several = 0
    for _ in range(50):
        concepts, text = random_search(rng)
        spans = brute_force(concepts, text)
        assert ConceptSet(frozenset(concepts)).find(text) == spans, (concepts, text)
        with_several += len(spans) > 1
    assert with_several > 10, "otherwise there is too little to compare"


def random_search(rng):
    """Concepts, and a text that has some of them and much that resembles them."""
    words = ["a", "b", "ab", "é", "i\u0307", "a'b", "a_b", "ka", "1"]
    concepts = {" ".join(rng.choices(words, k=rng.choice([1, 2, 2, 3, 4, 5]))) for _ in range(rng.randrange(1, 25))}
    pieces = ["a", "b", "A", "B", "1", "é", "e\u0301", "E\u0301", "İ", "\u212aa", "a’b", "\u0301", "\u200d", ""]
    signs = [" "] * 9 + ["-", "–", "'", "_", ".", "  ", "\n", " -", "\u00a0", "\U0001f600", "", ""]
    text = "".join(rng.choice(pieces) + rng.choice(signs) for _ in range(rng.randrange(40)))
    return concepts, text


def test_brute_force_finds_concepts():
    assert brute_force({"a b", "a"}, "A-b, aa a") == [(0, 3), (8, 9)]


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_longest_concept_is_found_at_word_boundaries(text, expected):
    concepts = concept_set("heart", "heart attack", "heart attack wave", "form wave", "form analysis")
    assert matches(concepts, text) == expected


def test_offsets_are_right_where_lower_case_is_longer():
    text = "İİİ İstanbul İSTANBUL, gene"
    assert len(text.lower()) > len(text)
    assert matches(concept_set("İstanbul", "gene"), text) == ["İstanbul", "İSTANBUL", "gene"]


def test_concepts_are_found_in_other_scripts():
    assert matches(concept_set("ΟΔΟΣ", "größe"), "Η οδος, GRÖßE. Größen") == ["οδος", "GRÖßE"]
    assert matches(concept_set("हिन्दी"), "हिन्दी हिन्द") == ["हिन्दी"], "a word is not cut at its vowels"
    assert matches(concept_set("клетка"), "Клетка клетками") == ["Клетка"]
    assert matches(concept_set("naïve bayes"), "A NAI\u0308VE Bayes") == ["NAI\u0308VE Bayes"]


def test_search_is_linear_in_the_text():
    """Count the expensive look-ups, those that join words."""
    lookups = Counter()

    class Counting(frozenset):
        def __contains__(self, name):
            lookups["joined"] += 1
            return super().__contains__(name)

    concepts = concept_set("a a a b", "a b", "c")
    object.__setattr__(concepts, "concepts", Counting(concepts.concepts))
    for words in (1_000, 10_000):
        lookups.clear()
        assert concepts.find("a " * words) == []
        assert lookups["joined"] <= 2 * words
