//! The states that entries keep between calls: a struct that the caller holds.

use crate::emit::{ProgramEmitter, Text, identifier, memory};
use crate::error::{Error, Result};
use kiln_plan::{Allocation, Plan};
use kiln_runtime::Buffer;

/// A state, which is a member of the struct.
struct Member {
    name: String,
    /// Its name in C.
    text: String,
    value: Buffer,
    /// The number of its initial value.
    source: usize,
}

/// The states of all entries, in the order in which they are first used.
#[derive(Default)]
pub(crate) struct States {
    all: Vec<Member>,
}

impl States {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// An expression for the array of a state with the initial value `value`.
    pub fn array(
        &mut self,
        emitter: &mut ProgramEmitter,
        name: &str,
        value: &Buffer,
    ) -> Result<String> {
        if let Some(member) = self.all.iter().find(|m| m.name == name) {
            return Ok(format!("state->{}", member.text));
        }
        let mut text = identifier(name);
        while self.all.iter().any(|m| m.text == text) {
            text.push('_');
        }
        let bytes = value.to_bytes().map_err(Error::Prepare)?;
        let source = emitter.weights.add(value.dtype(), bytes);
        let array = format!("state->{text}");
        self.all.push(Member {
            name: name.into(),
            text,
            value: value.clone(),
            source,
        });
        Ok(array)
    }

    /// An expression for the array of a state that some entry reads.
    ///
    /// # Errors
    /// If no entry reads it.
    pub fn find(&self, name: &str) -> Result<String> {
        let member = self.all.iter().find(|m| m.name == name);
        let unread = || Error::Damaged(format!("state `{name}` is written and never read"));
        member
            .map(|m| format!("state->{}", m.text))
            .ok_or_else(unread)
    }

    /// The struct and the function that fills it, as declared in the header.
    pub fn declared(&self, prefix: &str, in_file: bool) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut text = Text::default();
        text.line(
            "/* The state between calls. A caller may have several, which are independent. */",
        );
        text.open(format!("typedef struct {prefix}_state"));
        for m in &self.all {
            let (ctype, shape) = (memory(m.value.dtype()), m.value.shape());
            let len = m.value.len().max(1);
            // A name is untrusted: it must not become code of C.
            let name = identifier(&m.name);
            text.line(format!(
                "{ctype} {}[{len}]; /* {name} {}{shape:?} */",
                m.text,
                m.value.dtype()
            ));
        }
        text.close_with(&format!(" {prefix}_state;"));
        text.line("/* Sets the state that the package holds. */");
        text.line(format!("{};", head(prefix, in_file)));
        text.line("");
        text.into_string()
    }

    /// The function that fills the struct.
    pub fn defined(&self, emitter: &mut ProgramEmitter) -> Result<String> {
        if self.is_empty() {
            return Ok(String::new());
        }
        let mut text = Text::default();
        text.open(head(&emitter.prefix, emitter.in_file()));
        if emitter.in_file() {
            text.line("const unsigned char *const weights = (const unsigned char *)weights_file;");
        }
        for m in self.all.iter().filter(|m| !m.value.is_empty()) {
            let from = emitter.expression(&crate::emit::Memory::Fixed(m.source))?;
            text.line(format!(
                "memcpy(state->{0}, {from}, sizeof state->{0});",
                m.text
            ));
        }
        text.line("(void)state;");
        if emitter.in_file() {
            text.line("(void)weights;");
        }
        text.close();
        text.line("");
        Ok(text.into_string())
    }
}

fn head(prefix: &str, in_file: bool) -> String {
    let weights = if in_file {
        "const void *weights_file, "
    } else {
        ""
    };
    format!("void {prefix}_begin({weights}{prefix}_state *state)")
}

/// The plan with its prepared work moved into each run, since the inputs of that work may change.
pub(crate) fn without_prepare(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let mut run = std::mem::take(&mut plan.prepare);
    plan.commit += run.len() as u32;
    run.append(&mut plan.run);
    plan.run = run;
    for buffer in &mut plan.buffers {
        if buffer.allocation == Allocation::Prepared {
            buffer.allocation = Allocation::Temporary;
        }
    }
    plan
}
