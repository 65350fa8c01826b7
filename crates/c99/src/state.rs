//! The states that entries keep between calls: a struct that the caller holds.

use crate::emit::{ProgramEmitter, Text, identifier, memory};
use crate::error::{Error, Result};
use kiln_plan::{Allocation, Plan};
use kiln_runtime::Buffer;

/// A state, which is a member of the struct.
struct Member {
    name: String,
    /// Its name in C.
    c_name: String,
    value: Buffer,
    /// The index of its initial value among the weights.
    weight: usize,
}

/// The states of all entries, in the order in which they are first used.
#[derive(Default)]
pub(crate) struct States {
    members: Vec<Member>,
}

impl States {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// An expression for the array of a state with the initial value `value`.
    pub fn array(
        &mut self,
        emitter: &mut ProgramEmitter,
        name: &str,
        value: &Buffer,
    ) -> Result<String> {
        if let Some(member) = self.members.iter().find(|m| m.name == name) {
            return Ok(format!("state->{}", member.c_name));
        }
        let mut c_name = identifier(name);
        while self.members.iter().any(|m| m.c_name == c_name) {
            c_name.push('_');
        }
        let bytes = value.to_bytes().map_err(Error::Prepare)?;
        let weight = emitter.weights.add(value.dtype(), bytes);
        let array = format!("state->{c_name}");
        self.members.push(Member {
            name: name.into(),
            c_name,
            value: value.clone(),
            weight,
        });
        Ok(array)
    }

    /// An expression for the array of a state that some entry reads.
    ///
    /// # Errors
    /// If no entry reads it.
    pub fn find(&self, name: &str) -> Result<String> {
        let member = self.members.iter().find(|m| m.name == name);
        let unread = || Error::Damaged(format!("state `{name}` is written and never read"));
        member
            .map(|m| format!("state->{}", m.c_name))
            .ok_or_else(unread)
    }

    /// Declares the struct, and the function that initialises it.
    pub fn declare(&self, prefix: &str, in_file: bool) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut text = Text::default();
        text.line(
            "/* The state between calls. A caller may have several, which are independent. */",
        );
        text.open(format!("typedef struct {prefix}_state"));
        for m in &self.members {
            let (ctype, shape) = (memory(m.value.dtype()), m.value.shape());
            let len = m.value.len().max(1);
            // A name is untrusted: it must not become code of C.
            let name = identifier(&m.name);
            text.line(format!(
                "{ctype} {}[{len}]; /* {name} {}{shape:?} */",
                m.c_name,
                m.value.dtype()
            ));
        }
        text.close_with(&format!(" {prefix}_state;"));
        text.line("/* Sets the initial state. */");
        text.line(format!("{};", begin_signature(prefix, in_file)));
        text.line("");
        text.into_string()
    }

    /// Defines the function that initialises the struct.
    pub fn define(&self, emitter: &mut ProgramEmitter) -> Result<String> {
        if self.is_empty() {
            return Ok(String::new());
        }
        let mut text = Text::default();
        text.open(begin_signature(&emitter.prefix, emitter.in_file()));
        if emitter.in_file() {
            text.line("const unsigned char *const weights = (const unsigned char *)weights_file;");
        }
        for m in self.members.iter().filter(|m| !m.value.is_empty()) {
            let from = emitter.expression(&crate::emit::Memory::Fixed(m.weight))?;
            text.line(format!(
                "memcpy(state->{0}, {from}, sizeof state->{0});",
                m.c_name
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

/// Returns the signature of the function that initialises the struct.
fn begin_signature(prefix: &str, in_file: bool) -> String {
    let weights = if in_file {
        "const void *weights_file, "
    } else {
        ""
    };
    format!("void {prefix}_begin({weights}{prefix}_state *state)")
}

/// Returns the plan with *prepare* moved into each run, for inputs that may change.
pub(crate) fn move_prepare_into_run(plan: &Plan) -> Plan {
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
