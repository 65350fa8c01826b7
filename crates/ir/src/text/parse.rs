//! Parsing.

mod attributes;

use crate::{Fact, Facts, Graph, Node, NodeId, Output, SymbolInfo, Target, Value};
use kiln_base::{DType, Dim, Loc, NotADim};
use smallvec::SmallVec;

/// The position and the reason at which a text is not a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// The syntax that was expected.
    pub message: String,
}

/// The maximum nesting of bodies.
const MAX_DEPTH: usize = 32;

impl Graph {
    /// Parses the text that `Display` prints. Locations are unknown.
    ///
    /// # Errors
    /// If the text does not follow the grammar of [`crate::text`].
    pub fn parse(text: &str) -> Result<Graph, ParseError> {
        let mut p = Parser { text, pos: 0 };
        let parsed = p.program();
        parsed.map_err(|Failure { pos, message }| {
            let before = text.get(..pos).unwrap_or(text);
            let start_of_line = before.rfind('\n').map_or(0, |i| i + 1);
            ParseError {
                line: before.matches('\n').count() + 1,
                column: before[start_of_line..].chars().count() + 1,
                message,
            }
        })
    }
}

struct Failure {
    pos: usize,
    message: String,
}

struct Parser<'t> {
    text: &'t str,
    /// A byte position on a character boundary.
    pos: usize,
}

type Parsed<T> = Result<T, Failure>;

impl<'t> Parser<'t> {
    fn program(&mut self) -> Parsed<Graph> {
        self.expect("graph")?;
        let graph = self.block(0)?;
        self.skip();
        match self.rest() {
            "" => Ok(graph),
            _ => self.fail("expected the end of the text"),
        }
    }

    /// `{ symbols… nodes… return … }`
    fn block(&mut self, depth: usize) -> Parsed<Graph> {
        self.expect("{")?;
        if depth > MAX_DEPTH {
            return self.fail(&format!("bodies nest more than {MAX_DEPTH} deep"));
        }
        let mut graph = Graph::default();
        if self.accept("symbols") {
            let mut index = 0..;
            graph.symbols = self.list(|p| p.symbol(index.next().unwrap_or(usize::MAX)))?;
        }
        while !self.accept("return") {
            self.node(&mut graph, depth)?;
        }
        if !self.accept("}") {
            graph.outputs = self.list(Self::output)?;
            self.expect("}")?;
        }
        Ok(graph)
    }

    /// Items separated by commas, at least one.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.accept(",") {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// `s0 >= 2 "batch"`
    fn symbol(&mut self, index: usize) -> Parsed<SymbolInfo> {
        self.expect(&format!("s{index}"))?;
        self.expect(">=")?;
        let min = self.number()?;
        self.skip();
        let pos = self.pos;
        let name = self.string()?;
        let name = attributes::read(name).map_err(|message| Failure { pos, message })?;
        Ok(SymbolInfo { name, min })
    }

    /// `%2: f32[4] = op(attributes) %0, %1 { … } else { … }`
    fn node(&mut self, graph: &mut Graph, depth: usize) -> Parsed<()> {
        self.skip();
        let pos = self.pos;
        let id = self.id()?;
        if id.index() != graph.len() {
            let next = graph.len();
            let message = format!("expected %{next} or return, not {id}");
            return Err(Failure { pos, message });
        }
        self.expect(":")?;
        let facts = self.facts()?;
        self.expect("=")?;
        self.skip();
        let op_start = self.pos;
        let name = self.word()?;
        let attributes = self.skip_parenthesised()?;
        let inputs = match self.operand_follows() {
            true => self.list(Self::value)?.into(),
            false => SmallVec::new(),
        };
        let mut bodies = vec![];
        if self.peek('{') {
            bodies.push(self.block(depth + 1)?);
            while self.accept("else") {
                bodies.push(self.block(depth + 1)?);
            }
        }
        let op = attributes::op(name, attributes, facts.first(), bodies);
        let op = op.map_err(|message| Failure {
            pos: op_start,
            message,
        })?;
        graph.push(Node {
            op,
            inputs,
            facts,
            loc: Loc::UNKNOWN,
        });
        Ok(())
    }

    /// `f32[2, s0]` or `(f32[2], i64[])`
    fn facts(&mut self) -> Parsed<Facts> {
        if !self.accept("(") {
            return Ok(Facts::from_buf([self.fact()?]));
        }
        if self.accept(")") {
            return Ok(Facts::new());
        }
        let facts = self.list(Self::fact)?;
        self.expect(")")?;
        Ok(facts.into())
    }

    fn fact(&mut self) -> Parsed<Fact> {
        self.skip();
        let pos = self.pos;
        let name = self.word()?;
        let Some(dtype) = DType::from_name(name) else {
            let message = format!("{name:?} is not a dtype");
            return Err(Failure { pos, message });
        };
        self.expect("[")?;
        let Some(end) = self.rest().find(']') else {
            return self.fail("expected ]");
        };
        let dims = &self.rest()[..end];
        let shape: Result<Vec<Dim>, NotADim> = match dims.trim() {
            "" => Ok(vec![]),
            _ => dims.split(',').map(Dim::parse).collect(),
        };
        match shape {
            Ok(shape) => {
                self.pos += end + 1;
                Ok(Fact::new(dtype, shape))
            }
            Err(e) => self.fail(&e.to_string()),
        }
    }

    /// `%2`, `kept %2` or `assign 1 %2`
    fn output(&mut self) -> Parsed<Output> {
        let target = if self.accept("kept") {
            Target::Kept
        } else if self.accept("assign") {
            Target::Assign(self.number()?)
        } else {
            Target::Result
        };
        let value = self.value()?;
        Ok(Output { value, target })
    }

    /// `%2` or `%2.1`
    fn value(&mut self) -> Parsed<Value> {
        let node = self.id()?;
        let output = if self.rest().starts_with('.') {
            self.pos += 1;
            self.number()?
        } else {
            0
        };
        Ok(Value { node, output })
    }

    fn id(&mut self) -> Parsed<NodeId> {
        self.expect("%")?;
        Ok(NodeId(self.number()?))
    }

    fn number<N: std::str::FromStr>(&mut self) -> Parsed<N> {
        self.skip();
        let digits = |c: char| !c.is_ascii_digit() && c != '-';
        let end = self.rest().find(digits).unwrap_or(self.rest().len());
        match self.rest()[..end].parse() {
            Ok(n) => {
                self.pos += end;
                Ok(n)
            }
            Err(_) => self.fail("expected a number"),
        }
    }

    /// Letters, digits and underscores.
    fn word(&mut self) -> Parsed<&'t str> {
        self.skip();
        let end = self.rest().find(|c: char| !is_word(c));
        let end = end.unwrap_or(self.rest().len());
        if end == 0 {
            return self.fail("expected a name");
        }
        let word = &self.rest()[..end];
        self.pos += end;
        Ok(word)
    }

    /// A string with its quotes.
    fn string(&mut self) -> Parsed<&'t str> {
        self.skip();
        if !self.rest().starts_with('"') {
            return self.fail("expected a string");
        }
        match end_of_string(self.rest()) {
            Some(end) => {
                let text = &self.rest()[..end];
                self.pos += end;
                Ok(text)
            }
            None => self.fail("the string does not end"),
        }
    }

    /// Returns the text in parentheses, with both; empty if no parenthesis follows.
    fn skip_parenthesised(&mut self) -> Parsed<&'t str> {
        if !self.rest().starts_with('(') {
            return Ok("");
        }
        let rest = self.rest();
        let (mut depth, mut i) = (0usize, 0);
        while let Some(c) = rest[i..].chars().next() {
            match c {
                '"' => match end_of_string(&rest[i..]) {
                    Some(end) => {
                        i += end;
                        continue;
                    }
                    None => break,
                },
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            i += c.len_utf8();
            if depth == 0 {
                self.pos += i;
                return Ok(&rest[..i]);
            }
        }
        self.fail("the parenthesis is not closed")
    }

    /// Skips space and comments.
    fn skip(&mut self) {
        loop {
            let trimmed = self.rest().trim_start();
            self.pos = self.text.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.pos += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.pos..]
    }

    fn peek(&mut self, c: char) -> bool {
        self.skip();
        self.rest().starts_with(c)
    }

    /// True if an operand comes next, rather than the id of the next node, which ends with a colon.
    fn operand_follows(&mut self) -> bool {
        self.skip();
        let Some(name) = self.rest().strip_prefix('%') else {
            return false;
        };
        let name = name.trim_start_matches(|c: char| c.is_ascii_digit());
        !name.trim_start().starts_with(':')
    }

    /// Takes a token if it comes next; names must end where it ends.
    fn accept(&mut self, token: &str) -> bool {
        self.skip();
        let Some(after) = self.rest().strip_prefix(token) else {
            return false;
        };
        if token.ends_with(is_word) && after.starts_with(is_word) {
            return false;
        }
        self.pos += token.len();
        true
    }

    fn expect(&mut self, token: &str) -> Parsed<()> {
        match self.accept(token) {
            true => Ok(()),
            false => self.fail(&format!("expected {token}")),
        }
    }

    fn fail<T>(&self, message: &str) -> Parsed<T> {
        Err(Failure {
            pos: self.pos,
            message: message.into(),
        })
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The end of the string that `text` starts with.
fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(i + 1),
            _ => {}
        }
    }
    None
}
