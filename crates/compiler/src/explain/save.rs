//! Explanations as files.

use super::{Explain, dot, page};
use std::io::{self, Write};
use std::path::Path;

impl Explain {
    /// A page that needs no other file and no network. It shows the graph as recorded and as lowered, coloured by
    /// kernel; the kernels with their cost, Kernel IR and code; the rewrites; the memory over the steps of a run.
    pub fn to_html(&self) -> String {
        page::page(self)
    }

    /// The optimised graph in the language of Graphviz, nodes coloured by kernel. Empty for programs of
    /// the plan cache, which keeps no graphs.
    pub fn to_dot(&self) -> String {
        self.stages
            .as_ref()
            .map_or_else(String::new, |s| dot::dot(s))
    }

    /// Writes the explanation in the format of the file's extension: a page (`.html`), Graphviz (`.dot`, `.gv`), else
    /// text. An existing file is replaced as a whole.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let text = match path.extension().and_then(|e| e.to_str()) {
            Some("html" | "htm") => self.to_html(),
            Some("dot" | "gv") => self.to_dot(),
            _ => self.to_string(),
        };
        kiln_base::file::replace(path, |f| f.write_all(text.as_bytes()))
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    }
}
