//! Explanations as files.

use super::{Explain, dot, page};
use std::io::{self, Write};
use std::path::Path;

impl Explain {
    /// A page that needs no other file and no network: the graph as it was recorded and as it was
    /// lowered, coloured by kernel; kernels with their cost, Kernel IR and code; rewrites; memory over
    /// the steps of a run.
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

    /// Writes the explanation as what the name of the file ends in: a page (`.html`), Graphviz (`.dot`,
    /// `.gv`), else text. A file that is there is replaced whole.
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
