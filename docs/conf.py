"""Sphinx reads the repository's pages where they are: bash scripts/docs.sh."""
import re
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "site"))
import breathe.directives.file as breathe_file  # noqa: E402
import generated  # noqa: E402
from breathe import parser, renderer  # noqa: E402
from docutils import nodes  # noqa: E402
from sphinx import addnodes  # noqa: E402

project = author = "mezzo"
version = release = re.search(r'MEZZO_VERSION "([\d.]+)"', (ROOT / "include/mezzo/version.h").read_text())[1]
html_title = f"mezzo {version}"
copyright = "the mezzo authors, Apache-2.0"

root_doc = "docs/index"
include_patterns = ["docs/**.md", "examples/README.md", "benchmarks/**.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = ["build", ".*", "shared"]
suppress_warnings = ["duplicate_declaration.cpp"]  # of namespaces, which each header opens again

extensions = ["myst_parser", "sphinx_design", "breathe", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 6

breathe_projects = {"mezzo": str(ROOT / "build/doxygen/xml")}
breathe_default_project = "mezzo"
breathe_show_include = False

autodoc_mock_imports = [name for name in ("numpy", "sklearn") if find_spec(name) is None]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

html_theme = "furo"
html_static_path = ["site/static"]
html_css_files = ["mezzo.css"]
html_copy_source = html_show_sourcelink = False
pygments_style, pygments_dark_style = "friendly", "monokai"


def find_header(path, d_parser, project_info, index, matches):
    """Breathe's search for a file, by its whole path: two headers may have one name."""
    for compound in index.file_compounds:
        if compound.name == Path(path).name:
            for found in d_parser.parse_compound(compound.refid, project_info).root.compounddef:
                if found.location is not None and found.location.file == path:
                    matches.append([renderer.TaggedNode(None, found)])


breathe_file.file_finder_filter = find_header
create_file_filter = breathe_file.create_file_filter


def public_alone(path, options):
    """Breathe's choice of what it shows of a file, without private members."""
    is_shown = create_file_filter(path, options)
    return lambda stack: is_shown(stack) and getattr(stack.node, "prot", None) != parser.DoxProtectionKind.private


breathe_file.create_file_filter = public_alone


def without_namespaces(app, document):
    """Leaves the contents of the namespaces around a header, without the comment of the namespace. Drops internal namespaces."""
    for node in list(document.findall(addnodes.desc)):
        name = node[0].astext()
        if name.startswith("namespace "):
            is_internal = name.split()[1] in ("detail", "torch", "at", "c10", "c10d")
            at = node.parent.index(node)
            node.parent[at:at + 1] = [] if is_internal else [child for child in node[-1].children if not isinstance(child, nodes.paragraph)]


def setup(app):
    app.connect("source-read", lambda app, name, source: source.__setitem__(0, generated.filled(source[0], name)))
    app.connect("doctree-read", without_namespaces)
