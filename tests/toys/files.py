"""Minimal Office and PDF files."""

from __future__ import annotations

import zipfile

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def word_file(path, *paragraphs, head=""):
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r><w:r><w:tab/><w:t>end</w:t></w:r></w:p>" for text in paragraphs)
    with zipfile.ZipFile(path, "w") as archive:
        xml = f'{head}<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
        archive.writestr("word/document.xml", xml)


def office_file(path, **parts):
    """Write a zip archive of XML; `__` in a name is a slash: `ppt__slides__slide1="<a/>"`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, xml in parts.items():
            archive.writestr(f"{name.replace('__', '/')}.xml", xml)


def slides_file(path, *slides):
    """Write a PowerPoint file; a slide is a list of paragraphs."""
    drawing = "http://schemas.openxmlformats.org/drawingml/2006/main"
    parts = {}
    for number, paragraphs in enumerate(slides, 1):
        body = "".join(f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>" for text in paragraphs)
        parts[f"ppt__slides__slide{number}"] = f'<p:sld xmlns:p="urn:p" xmlns:a="{drawing}">{body}</p:sld>'
    office_file(path, **parts)


def sheets_file(path, **sheets):
    """Write an Excel file; a sheet is the XML of its rows. Shared strings: 0 is "shared", 1 is "two parts"."""
    names, relations = "", ""
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, rows) in enumerate(sheets.items(), 1):
            names += f'<sheet name="{name}" sheetId="{number}" r:id="r{number}"/>'
            relations += f'<Relationship Id="r{number}" Target="worksheets/sheet{number}.xml"/>'
            archive.writestr(
                f"xl/worksheets/sheet{number}.xml", f"<worksheet><sheetData>{rows}</sheetData></worksheet>"
            )
        archive.writestr("xl/workbook.xml", f'<workbook xmlns:r="urn:r"><sheets>{names}</sheets></workbook>')
        archive.writestr("xl/_rels/workbook.xml.rels", f"<Relationships>{relations}</Relationships>")
        strings = "<si><t>shared</t></si><si><r><t>two </t></r><r><t>parts</t></r><rPh><t>unread</t></rPh></si>"
        archive.writestr("xl/sharedStrings.xml", f"<sst>{strings}</sst>")
        styles = (
            '<styleSheet><numFmts><numFmt numFmtId="164" formatCode="yyyy\\-mm"/>'
            '<numFmt numFmtId="165" formatCode="0.0 &quot;days&quot;"/></numFmts>'
            '<cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="165"/></cellXfs>'
            "</styleSheet>"
        )
        archive.writestr("xl/styles.xml", styles)


def cells(row, *values):
    """Return the XML of a row of texts."""
    texts = "".join(
        f'<c r="{"ABCDEFGH"[column]}{row}" t="inlineStr"><is><t>{value}</t></is></c>'
        for column, value in enumerate(values)
    )
    return f'<row r="{row}">{texts}</row>'


def pdf_file(path, text):
    """Write a PDF with one line of text."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
    ]
    body, offsets = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    end = f"xref\n0 5\n0000000000 65535 f \n{table}trailer << /Size 5 /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF"
    path.write_text(body + end, encoding="latin-1")
