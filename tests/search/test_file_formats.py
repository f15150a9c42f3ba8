"""Every format gives clean text; hostile and broken files are refused with a reason."""

from __future__ import annotations

import zipfile
from email.message import EmailMessage

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.search import office
from decoder2vec.search.file_formats import read_file_text, read_tables
from toys.files import WORD, cells, office_file, sheets_file, slides_file, word_file


def save(tmp_path, name, content):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / name


def test_html_gives_visible_text_and_title(tmp_path):
    page = """<!DOCTYPE html><html><head><title>Lamps &amp; sofas</title><style>p {color: red}</style>
    <script>if (a < b) document.write("<!-- <p>unseen</p>")</script></head><body><nav><a href="/">Home</a></nav>
    <h1>All about lamps</h1><p>A <b>bright</b>\n lamp<br>is &lt; 5 W. <!-- unseen --></p>
    <ul><li>one<li>two</ul><img alt="a > b"><table><tr><td>x</td><td>y</td></tr></table></body></html>"""
    text, metadata = read_file_text(save(tmp_path, "a.html", page))
    assert metadata == {"title": "Lamps & sofas"}
    assert text == "Lamps & sofas\n\nAll about lamps\n\nA bright lamp is < 5 W.\n\none\n\ntwo\n\nx y"


@pytest.mark.parametrize("tag", ["script", "STYLE"])
def test_html_after_a_script_is_read(tmp_path, tag):
    page = f"<p>İstanbul</p><{tag}>unseen</{tag.swapcase()} ><p>seen</p>"  # İ.lower() has two letters
    assert read_file_text(save(tmp_path, "a.html", page)).text == "İstanbul\n\nseen"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ('<p><a title="a<b">one</a> two', "one two"),
        ("<p><a title = '<i>x</i>' href=\"<\">one</a> two", "one two"),
        ("<p>1 < 2 and it's <b>3 > 2</b>", "1 < 2 and it's 3 > 2"),
        ('<p>x="<b>bold</b>"', 'x="bold"'),
        ('<p>1 <x and y="<b>2</b>', '1 <x and y="2'),
        ('<p><a href="x>one</a> two', "one two"),
        ("<p>I <3 you</p> <", "I <3 you\n\n<"),
    ],
)
def test_quoted_brackets_are_part_of_their_tag(tmp_path, page, text):
    assert read_file_text(save(tmp_path, "a.html", page)).text == text


@pytest.mark.parametrize("charset", ["utf-8", "windows-1251", "iso-8859-1", "utf-16"])
def test_html_is_decoded_by_its_charset(tmp_path, charset):
    words = "Привет" if charset == "windows-1251" else "naïve café"
    page = f'<meta charset="{charset}"><p>{words}</p>'.encode(charset)
    assert read_file_text(save(tmp_path, "a.htm", page)).text == words


def test_latin1_of_html_means_windows_1252(tmp_path):
    page = '<meta charset="ISO-8859-1"><p>“It’s 5 €” – ok</p>'.encode("cp1252")
    assert read_file_text(save(tmp_path, "a.html", page)).text == "“It’s 5 €” – ok"
    page = page.replace(b"ok", b"caf\xe9 \x81")  # a byte without a meaning costs only itself
    assert read_file_text(save(tmp_path, "a.html", page)).text == "“It’s 5 €” – café \ufffd"


@pytest.mark.parametrize("charset", ["utf-8-sig", "utf-16"])
def test_byte_order_mark_beats_the_declared_charset(tmp_path, charset):
    page = '<meta charset="iso-8859-1"><p>naïve café</p>'.encode(charset)
    assert read_file_text(save(tmp_path, "a.html", page)).text == "naïve café"


@pytest.mark.parametrize("declared", ["iso-nonsense", "euc-jp"])
def test_wrong_charset_of_html_is_ignored(tmp_path, declared):
    page = f'<meta charset="{declared}"><p>A café for 5 €</p>'.encode()
    assert read_file_text(save(tmp_path, "a.html", page)).text == "A café for 5 €"


@pytest.mark.parametrize("piece", ["<!--", "<a ", "<![CDATA[", "<a x='", "x='<a '", "x='<a \"", "<script>", "</", "&#"])
def test_hostile_html_is_read_in_linear_time(tmp_path, piece):
    assert read_file_text(save(tmp_path, "a.html", f"<p>seen</p><a {piece * 50_000}")).text.startswith("seen")


def test_hostile_rule_is_read_in_linear_time(tmp_path):
    line = f"---{' ' * 200_000}x"  # minutes if the time is quadratic
    assert read_file_text(save(tmp_path, "a.md", f"seen\n\n{line}")).text == f"seen\n\n{line}"


@pytest.mark.parametrize("rule", ["---", " ***  ", "_ _ _", "=", "--", "* - _"])
def test_rules_of_markdown_are_left_out(tmp_path, rule):
    assert read_file_text(save(tmp_path, "a.md", f"one\n\n{rule}\ntwo\n\n**")).text == "one\n\ntwo\n\n**"


def test_markdown_gives_text_without_marks(tmp_path):
    markdown = """---
title: "The guide"
---
# Start **here** #

See [the *docs*](http://a.b/c_(d)) and ![a lamp](x.png), `snake_case`, __bold__, 2 * 3 * 4, \\*raw\\* &amp; <b>tag</b>.

Setext
------
* one
> quoted

| a | b |
|---|---|
| 1 | 2 |

```sh
ls *.py  # all
```
[docs]: http://a.b
"""
    text, metadata = read_file_text(save(tmp_path, "a.md", markdown))
    assert metadata == {"title": "The guide"}
    assert text == (
        "Start here\n\nSee the docs and a lamp, snake_case, bold, 2 * 3 * 4, *raw* & tag.\n\nSetext\n\n- one\n"
        "quoted\n\na  b\n1  2\n\nls *.py  # all"
    )
    assert read_file_text(tmp_path / "a.md", keep_marks=True).text == markdown


def test_markdown_keeps_what_is_inside_backticks(tmp_path):
    markdown = (
        "# The `*` mark\n\n`*a*`, `__init__`, [`**kw`](x), **bold `_x_`**, ``a`b``, `<b>`, `&amp;`, `a\\*`, "
        "\\`*no*\\`, `[a](b)`, <i title='`x`'>`1`</i>, `open *one*"
    )
    text, metadata = read_file_text(save(tmp_path, "a.md", markdown))
    assert metadata == {"title": "The * mark"}
    assert text == "The * mark\n\n*a*, __init__, **kw, bold _x_, a`b, <b>, &amp;, a\\*, `no`, [a](b), 1, `open one"


def test_markdown_with_nul_characters_is_read(tmp_path):
    assert read_file_text(save(tmp_path, "a.md", "a\x007\x00 `b`".encode("utf-16"))).text == "a7 b"


def test_rst_keeps_what_is_inside_backticks(tmp_path):
    rst = "``*a*``, ``name_``, ``a <b>`` and **bold** or ``open *one*"
    assert read_file_text(save(tmp_path, "a.rst", rst)).text == "*a*, name_, a <b> and bold or ``open one"


@pytest.mark.parametrize("piece", ["`a", "``a", "`a``b```c", "` ", "\\`"])
@pytest.mark.parametrize("name", ["a.md", "a.rst"])
def test_hostile_backticks_are_read_in_linear_time(tmp_path, name, piece):
    assert read_file_text(save(tmp_path, name, f"seen {piece * 50_000}")).text.startswith("seen")


def test_first_heading_is_the_title(tmp_path):
    assert read_file_text(save(tmp_path, "a.md", "text\n\n## Two\n# One")).metadata == {"title": "Two"}
    assert read_file_text(save(tmp_path, "a.md", "Head\n====\ntext")).metadata == {"title": "Head"}
    assert read_file_text(save(tmp_path, "a.md", "only text")).metadata == {}


def test_rst_gives_text_without_marks(tmp_path):
    rst = """=====
Title
=====

.. _label:

Some *emphasis*, **bold**, ``code``, :ref:`a role <label>`, `a link <http://a.b>`_ and name_.

.. note:: Take care.

.. code-block:: python
   :linenos:

   x = 1

Section
-------
The end::
"""
    text, metadata = read_file_text(save(tmp_path, "a.rst", rst))
    assert metadata == {"title": "Title"}
    assert text == (
        "Title\n\nSome emphasis, bold, code, a role, a link and name.\n\nTake care.\n\n   x = 1\n\nSection\n\nThe end:"
    )


def mail(**contents):
    message = EmailMessage()
    message["Subject"], message["From"] = "Grüße aus Köln", "Ann Lee <ann@example.com>"
    message["Date"] = "Mon, 05 Feb 2024 10:00:00 +0100"
    for subtype, content in contents.items():
        if subtype == "plain":
            message.set_content(content)
        elif message.get_content_type() == "text/plain" and "plain" not in contents:
            message.set_content(content, subtype=subtype)
        else:
            message.add_alternative(content, subtype=subtype)
    return message


def test_email_gives_subject_text_and_metadata(tmp_path):
    message = mail(plain="Plain café.\n", html="<p>Unread</p>")
    message.add_attachment(b"unread", maintype="application", subtype="pdf", filename="a.pdf")
    text, metadata = read_file_text(save(tmp_path, "a.eml", bytes(message)))
    assert text == "Grüße aus Köln\n\nPlain café."
    assert metadata == {
        "subject": "Grüße aus Köln",
        "from": "Ann Lee <ann@example.com>",
        "date": "2024-02-05T10:00:00+01:00",
    }


def test_email_of_html_alone_gives_its_text(tmp_path):
    message = mail(html="<style>p {}</style><p>Only <b>HTML</b>.</p>")
    assert read_file_text(save(tmp_path, "a.eml", bytes(message))).text == "Grüße aus Köln\n\nOnly HTML."


def test_malformed_email_is_read_or_refused(tmp_path):
    assert read_file_text(save(tmp_path, "a.eml", b"Date: never\nFrom: <<>>@\n\nText.")).text == "Text."
    with pytest.raises(DataFileError):
        read_file_text(save(tmp_path, "b.eml", b"Content-Type: text/plain; charset=nonsense\n\nText \xff."))


def test_word_file_gives_every_text_once(tmp_path):
    box = "<w:txbxContent><w:p><w:r><w:t>in a box</w:t></w:r></w:p></w:txbxContent>"
    body = f"""<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>before</w:t><w:br/><w:t>break</w:t></w:r>
    <w:r><mc:AlternateContent xmlns:mc="urn:mc"><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback>
    </mc:AlternateContent></w:r></w:p><w:p/><w:p><w:r><w:t>last</w:t></w:r></w:p>"""
    office_file(tmp_path / "a.docx", word__document=f'<w:document xmlns:w="{WORD}">{body}</w:document>')
    assert read_file_text(tmp_path / "a.docx").text == "before\nbreak\n\nin a box\n\nlast"


def test_slides_are_read_in_order(tmp_path):
    slides_file(tmp_path / "a.pptx", *([f"Slide {number}", "A &amp; B"] for number in range(1, 12)))
    paragraphs = read_file_text(tmp_path / "a.pptx").text.split("\n\n")
    assert paragraphs == [text for number in range(1, 12) for text in (f"Slide {number}", "A & B")]


def test_sheets_give_rows_by_column(tmp_path):
    typed = """<row r="4"><c r="A4" t="s"><v>0</v></c><c r="B4" t="s"><v>1</v></c>
    <c r="C4"><v>0.10000000000000001</v></c><c r="D4" t="b"><v>1</v></c><c r="E4" s="1"><v>45292</v></c>
    <c r="F4" s="2"><v>45292.5</v></c>
    <c r="G4" s="3"><v>2</v></c><c r="H4" t="str"><f>A1</f><v>formula</v></c></row>"""
    sheets_file(tmp_path / "a.xlsx", Goods=cells(2, "name", "kind", "price") + typed, Empty="", More=cells(1, "x"))
    sheets = {name: list(rows) for name, rows in read_tables(tmp_path / "a.xlsx")}
    row = {"name": "shared", "kind": "two parts", "price": "0.1", "D": "TRUE", "E": "2024-01-01"}
    row |= {"F": "2024-01-01 12:00:00", "G": "2", "H": "formula"}
    assert sheets == {"Goods": [(4, row)], "Empty": [], "More": []}


def test_cells_without_a_reference_follow_each_other(tmp_path):
    def row(*values, at_z=""):
        texts = [f'<c t="str"><v>{value}</v></c>' for value in values]
        return f"<row>{''.join(texts[:3])}{at_z}{''.join(texts[3:])}</row>"

    names = row(*(f"name {index}" for index in range(27)))
    values = row("one", "", "three", "27", "28", at_z='<c r="Z2" t="str"><v>26</v></c>')
    sheets_file(tmp_path / "a.xlsx", A=names + values)
    ((number, fields),) = next(list(rows) for _, rows in read_tables(tmp_path / "a.xlsx"))
    texts = {"name 0": "one", "name 2": "three", "name 25": "26", "name 26": "27", "AB": "28"}
    assert (number, {name: text for name, text in fields.items() if text}) == (2, texts)


def test_hostile_number_format_is_read_in_linear_time():
    assert office._LITERAL.sub("", '[Red]yyyy" days"\\m' + "[" * 400_000).startswith("yyyy[")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_are_refused(tmp_path, encoding):
    head = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
    xml = f'{head}<w:document xmlns:w="{WORD}"><w:p><w:t>&b;</w:t></w:p></w:document>'
    office_file(tmp_path / "a.docx", word__document=xml.encode(encoding))
    with pytest.raises(DataFileError, match="entities"):
        read_file_text(tmp_path / "a.docx")


def test_zip_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(office, "_MAX_XML_BYTES", 1_000_000)
    word_file(tmp_path / "a.docx", "x" * 2_000_000)
    slides_file(tmp_path / "a.pptx", *([["x" * 300_000]] * 4))
    sheets_file(tmp_path / "a.xlsx", A=cells(1, "text") + cells(2, "x" * 2_000_000))
    for read in (
        lambda: read_file_text(tmp_path / "a.docx"),
        lambda: read_file_text(tmp_path / "a.pptx"),
        lambda: [list(rows) for _, rows in read_tables(tmp_path / "a.xlsx")],
    ):
        with pytest.raises(DataFileError, match="unpacks to more than 1 MB"):
            read()


def test_small_file_does_not_unpack_to_a_large_one(tmp_path):
    office_file(tmp_path / "a.docx", word__document=f'<w:document xmlns:w="{WORD}">{" " * 5_000_000}</w:document>')
    assert (tmp_path / "a.docx").stat().st_size < 10_000
    with pytest.raises(DataFileError, match="unpacks to more than 4 MB"):
        read_file_text(tmp_path / "a.docx")


def test_deeply_nested_paragraphs_are_refused(tmp_path):
    xml = f'<w:document xmlns:w="{WORD}">{"<w:p>" * 100_000}{"</w:p>" * 100_000}</w:document>'
    office_file(tmp_path / "a.docx", word__document=xml)
    with pytest.raises(DataFileError, match="nested too deeply"):
        read_file_text(tmp_path / "a.docx")


@pytest.mark.parametrize("name", ["a.docx", "a.pptx", "a.xlsx", "a.pdf"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\xd0\xcf\x11\xe0 old", b"plain"])
def test_broken_files_are_refused(tmp_path, name, content):
    file = save(tmp_path, name, content)
    with pytest.raises(DataFileError, match=r"damaged|password"):
        list(read_tables(file)) if name == "a.xlsx" else read_file_text(file)


@pytest.mark.parametrize("xml", ["<row", '<row r="x"/>', '<row r="1"><c r="A1" t="s"><v>99</v></c></row>'])
def test_broken_sheets_are_refused(tmp_path, xml):
    sheets_file(tmp_path / "a.xlsx", A=xml)
    with pytest.raises(DataFileError, match="damaged"):
        [list(rows) for _, rows in read_tables(tmp_path / "a.xlsx")]


def test_archive_of_another_kind_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.docx", "w") as archive:
        archive.writestr("other.xml", "<a/>")
    with pytest.raises(DataFileError, match=r"damaged.*word/document.xml"):
        read_file_text(tmp_path / "a.docx")
