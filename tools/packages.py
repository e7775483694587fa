"""Writes a table to try mezzo with: descriptions of Debian's packages, and the section of each as its label."""
import argparse
import csv
import hashlib
import subprocess

SECTIONS = "fonts games mail math sound video web".split()


def read_packages():
    """(description, section) once each, in an order that a hash of the description decides."""
    said = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    rows = {}
    for package in said.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in package.splitlines() if ": " in line and not line.startswith(" "))
        description = fields.get("Description") or fields.get("Description-en")
        if description and fields.get("Section") in SECTIONS:
            rows[description] = fields["Section"]
    return sorted(rows.items(), key=lambda row: hashlib.sha256(row[0].encode()).hexdigest())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="the table, such as packages.csv")
    parser.add_argument("--rows", type=int, default=1500)
    args = parser.parse_args()
    with open(args.file, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("text", "label"), *read_packages()[:args.rows]])
