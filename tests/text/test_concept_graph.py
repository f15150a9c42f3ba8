"""A graph of concepts is read from the tables people have, and followed as far as asked."""

from __future__ import annotations

import gzip
import random

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.concepts import ConceptGraph


def random_edges(rng, nodes=40, edges=50):
    return [(f"n{rng.randrange(nodes)}", f"n{rng.randrange(nodes)}") for _ in range(edges)]


@pytest.mark.parametrize("seed", range(30))
def test_what_is_within_reach_is_what_networkx_reaches(seed):
    networkx = pytest.importorskip("networkx")
    rng = random.Random(seed)
    edges = random_edges(rng)
    graph, reference = ConceptGraph.from_edges(edges), networkx.Graph(edges)
    seeds = rng.sample(sorted(reference), 3)
    for hops in range(7):
        each = [networkx.single_source_shortest_path_length(reference, start, cutoff=hops) for start in seeds]
        assert graph.within(seeds, hops) == set().union(*each)
    reference.remove_edges_from(list(networkx.selfloop_edges(reference)))
    assert {name: graph.degree(name) for name in graph.neighbours} == dict(reference.degree())


def test_no_number_of_hops_leaves_the_graph():
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
def test_a_graph_is_read_from_tables_and_from_conceptnet(name, content, tmp_path):
    file = tmp_path / name
    file.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    wanted = {"heart attack": {"heart", "don't"}, "heart": {"heart attack"}, "don't": {"heart attack"}}
    assert ConceptGraph.read(file).neighbours == wanted


def test_paths_lead_over_names_that_no_text_has():
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
def test_what_is_no_graph_is_said_with_its_line(content, message, tmp_path):
    (tmp_path / "g.tsv").write_text(content)
    with pytest.raises(DataFileError, match=message):
        ConceptGraph.read(tmp_path / "g.tsv")


def test_a_graph_in_another_language(tmp_path):
    (tmp_path / "g.tsv").write_text("/c/de/herz\t/c/de/blut\n/c/en/heart\t/c/en/blood\n")
    assert set(ConceptGraph.read(tmp_path / "g.tsv", language="de").neighbours) == {"herz", "blut"}
