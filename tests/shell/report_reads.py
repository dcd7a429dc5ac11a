"""Reads a page of `lockstep report`: prints what is wrong with its HTML, the tiles and the last row of each table."""
import html.parser
import sys

EMPTY = {"meta", "link"}  # elements without an end tag


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.names, self.row, self.faults, self.figures = [], "", [], [], [], 0

    def handle_starttag(self, tag, attributes):
        self.text = ""
        self.figures += tag == "figure"
        self.row = [] if tag == "tr" else self.row
        for name, value in attributes:
            if tag == "script" or name.startswith("on") or (name in ("src", "href") and not value.startswith("data:")):
                self.faults.append("%s %s=%s" % (tag, name, value))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        if "svg" not in self.open:
            self.faults.append("%s/ outside of svg" % tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append("/" + tag)
        if tag == "dt":
            self.names.append(self.text)
        elif tag == "dd":
            print("%s: %s" % (self.names[-1], self.text))
        elif tag in ("td", "th"):
            self.row.append(self.text)
        elif tag == "tr":
            print("row: " + " | ".join(self.row))

    def handle_data(self, data):
        self.text += data


reader = Reader()
reader.feed(open(sys.argv[1], encoding="utf-8").read())
print("figures: %d" % reader.figures)
print("faults: " + " ".join(reader.faults + reader.open))
