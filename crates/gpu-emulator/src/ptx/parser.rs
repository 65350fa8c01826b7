//! Tokens → [`Module`], by recursive descent. Registers are resolved through their scopes while reading.

use super::lexer::{Token, tokenize};
use super::variables::{declaration, parameters};
use super::{Function, Instruction, Module, Operand, Register, SourceLine, SyntaxError, Type};
use std::collections::HashMap;

/// Parses a PTX text.
pub(crate) fn parse(source: &str) -> Result<Module, SyntaxError> {
    let tokens = tokenize(source)?;
    let mut at = Cursor {
        tokens: &tokens,
        next: 0,
    };
    let mut module = Module::default();
    while at.next < tokens.len() {
        top_level(&mut at, &mut module)?;
    }
    Ok(module)
}

fn top_level(at: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
    match at.peek() {
        ".version" | ".target" | ".address_size" | ".loc" => {
            at.skip_line();
            Ok(())
        }
        ".file" => file(at, module),
        ".section" => {
            while !at.next()?.text.eq("}") {}
            Ok(())
        }
        ";" => at.expect(";"),
        ".pragma" => {
            while at.next()?.text != ";" {}
            Ok(())
        }
        _ => {
            let is_function = at.ahead(
                |t| matches!(t, ".entry" | ".func"),
                |t| matches!(t, ";" | "{" | "="),
            );
            if is_function {
                function(at, module)
            } else {
                module.variables.extend(declaration(at, false)?);
                at.expect(";")
            }
        }
    }
}

fn file(at: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
    at.expect(".file")?;
    let number = at.integer()? as u32;
    let name = at.next()?.text.trim_matches('"').to_string();
    module.files.insert(number, name);
    while at.eat(",") {
        at.next()?;
    }
    Ok(())
}

fn function(at: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
    let mut function = Function {
        parents: vec![0],
        ..Default::default()
    };
    while matches!(at.peek(), ".visible" | ".weak" | ".extern") {
        at.next()?;
    }
    function.is_entry = at.next()?.text == ".entry";
    function.returns = parameters(at)?;
    function.name = at.next()?.text.to_string();
    function.parameters = parameters(at)?;
    while at.peek() != "{" && at.peek() != ";" {
        let directive = at.next()?;
        if matches!(directive.text, ".maxntid" | ".reqntid") {
            let mut threads = at.integer()?;
            while at.eat(",") {
                threads *= at.integer()?;
            }
            function.max_threads = Some(threads as u32);
        }
        if directive.text == ".reqnctapercluster" {
            let mut blocks = [at.integer()? as u32, 1, 1];
            for axis in 1..3 {
                if at.eat(",") {
                    blocks[axis] = at.integer()? as u32;
                }
            }
            function.cluster = Some(blocks);
        }
    }
    if at.eat(";") {
        return Ok(()); // a declaration
    }
    at.expect("{")?;
    let mut body = Body {
        function,
        names: vec![HashMap::new()],
        ranges: vec![HashMap::new()],
        scopes: vec![0],
        source: SourceLine::default(),
    };
    while !body.scopes.is_empty() {
        body.statement(at, module)?;
    }
    module.functions.push(body.function);
    Ok(())
}

/// A function while its body is read.
struct Body {
    function: Function,
    /// Registers by name, per scope.
    names: Vec<HashMap<String, Register>>,
    /// Declared ranges `%r<9>`, per scope: stem → (type, count).
    ranges: Vec<HashMap<String, (Type, u32)>>,
    /// The open scopes, innermost last.
    scopes: Vec<u32>,
    source: SourceLine,
}

impl Body {
    fn scope(&self) -> u32 {
        *self
            .scopes
            .last()
            .expect("a statement is read inside a scope")
    }

    fn statement(&mut self, at: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
        match at.peek() {
            "{" => {
                at.next()?;
                self.function.parents.push(self.scope());
                self.names.push(HashMap::new());
                self.ranges.push(HashMap::new());
                self.scopes.push(self.function.parents.len() as u32 - 1);
                Ok(())
            }
            "}" => {
                at.next()?;
                self.scopes.pop();
                Ok(())
            }
            ";" => at.expect(";"),
            ".loc" => self.location(at),
            ".file" => file(at, module),
            ".reg" => self.registers(at),
            ".pragma" => {
                while at.next()?.text != ";" {}
                Ok(())
            }
            ".shared" | ".local" | ".param" | ".global" | ".const" | ".extern" => {
                self.function.variables.extend(declaration(at, false)?);
                at.expect(";")
            }
            _ if at.peek_second() == ":" => self.label(at),
            _ => self.instruction(at),
        }
    }

    /// `.loc 1 12 3` and, on the same line, `, function_name …, inlined_at …`.
    fn location(&mut self, at: &mut Cursor) -> Result<(), SyntaxError> {
        let line = at.next()?.line;
        let (file, number) = (at.integer()? as u32, at.integer()? as u32);
        if number != 0 {
            self.source = SourceLine { file, line: number };
        }
        at.skip_rest_of(line);
        if at.peek() == "," {
            let line = at.next()?.line;
            at.skip_rest_of(line);
        }
        Ok(())
    }

    fn registers(&mut self, at: &mut Cursor) -> Result<(), SyntaxError> {
        at.expect(".reg")?;
        let mut word = at.next()?.text;
        if matches!(word, ".v2" | ".v4") {
            return Err(at.error("vector registers are unsupported"));
        }
        let ty = loop {
            match Type::parse(&word[1..]) {
                Some(ty) => break ty,
                None if word == ".align" => {
                    at.integer()?;
                    word = at.next()?.text;
                }
                None => return Err(at.error(format!("unsupported register type `{word}`"))),
            }
        };
        let scope = self.scope() as usize;
        loop {
            let name = at.next()?.text.to_string();
            if at.eat("<") {
                let count = at.integer()? as u32;
                at.expect(">")?;
                self.ranges[scope].insert(name, (ty, count));
            } else {
                let register = self.new_register(ty);
                self.names[scope].insert(name, register);
            }
            if !at.eat(",") {
                return at.expect(";");
            }
        }
    }

    fn new_register(&mut self, ty: Type) -> Register {
        self.function.registers.push(ty);
        Register(self.function.registers.len() as u32 - 1)
    }

    /// The register `name` that the current scope sees.
    fn register(&mut self, name: &str) -> Option<Register> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let mut scope = self.scope();
        loop {
            if let Some(&found) = self.names[scope as usize].get(name) {
                return Some(found);
            }
            if stem.len() < name.len()
                && let Some(&(ty, count)) = self.ranges[scope as usize].get(stem)
                && name[stem.len()..].parse::<u32>().is_ok_and(|i| i < count)
            {
                let register = self.new_register(ty);
                self.names[scope as usize].insert(name.to_string(), register);
                return Some(register);
            }
            if scope == 0 {
                return None;
            }
            scope = self.function.parents[scope as usize];
        }
    }

    fn label(&mut self, at: &mut Cursor) -> Result<(), SyntaxError> {
        let name = at.next()?.text.to_string();
        at.expect(":")?;
        let key = (self.scope(), name);
        if at.eat(".branchtargets") {
            let mut targets = vec![at.next()?.text.to_string()];
            while at.eat(",") {
                targets.push(at.next()?.text.to_string());
            }
            self.function.tables.insert(key, targets);
            return at.expect(";");
        }
        if at.peek() == ".callprototype" {
            return Err(at.error("calls through a pointer are unsupported"));
        }
        self.function
            .labels
            .insert(key, self.function.instructions.len());
        Ok(())
    }

    fn instruction(&mut self, at: &mut Cursor) -> Result<(), SyntaxError> {
        let mut guard = None;
        if at.eat("@") {
            let negated = at.eat("!");
            let name = at.next()?.text;
            let predicate = self
                .register(name)
                .ok_or_else(|| at.error(format!("unknown predicate `{name}`")))?;
            guard = Some((predicate, negated));
        }
        let opcode = at.next()?;
        if !opcode.text.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(at.error(format!("`{}` is not an instruction", opcode.text)));
        }
        let mut operands = Vec::new();
        while at.peek() != ";" {
            operands.push(self.operand(at)?);
            if !at.eat(",") {
                break;
            }
        }
        at.expect(";")?;
        self.function.instructions.push(Instruction {
            guard,
            opcode: opcode.text.to_string(),
            operands,
            scope: self.scope(),
            line: opcode.line,
            source: self.source,
        });
        Ok(())
    }

    fn operand(&mut self, at: &mut Cursor) -> Result<Operand, SyntaxError> {
        let operand = match at.peek() {
            "{" => Operand::Vector(self.sequence(at, "{", "}")?),
            "(" => Operand::List(self.sequence(at, "(", ")")?),
            "[" => self.address(at)?,
            "!" => {
                at.next()?;
                let name = at.next()?.text;
                match self.register(name) {
                    Some(register) => Operand::Not(register),
                    None => return Err(at.error(format!("unknown predicate `{name}`"))),
                }
            }
            _ => self.simple(at)?,
        };
        if at.eat("|") {
            let second = self.operand(at)?;
            return Ok(Operand::Pair(Box::new(operand), Box::new(second)));
        }
        Ok(operand)
    }

    fn sequence(
        &mut self,
        at: &mut Cursor,
        open: &str,
        close: &str,
    ) -> Result<Vec<Operand>, SyntaxError> {
        at.expect(open)?;
        let mut items = Vec::new();
        while at.peek() != close {
            items.push(self.operand(at)?);
            if !at.eat(",") {
                break;
            }
        }
        at.expect(close)?;
        Ok(items)
    }

    fn address(&mut self, at: &mut Cursor) -> Result<Operand, SyntaxError> {
        at.expect("[")?;
        let base = match self.simple(at)? {
            Operand::Symbol(name, offset) => {
                at.expect("]")?;
                return Ok(Operand::Address(Box::new(Operand::Symbol(name, 0)), offset));
            }
            other => other,
        };
        if at.eat(",") {
            let coordinates = self.sequence(at, "{", "}")?;
            at.expect("]")?;
            return Ok(Operand::Tensor(Box::new(base), coordinates));
        }
        let offset = at.offset()?;
        at.expect("]")?;
        Ok(Operand::Address(Box::new(base), offset))
    }

    /// A register, number, special register or symbol with an offset.
    fn simple(&mut self, at: &mut Cursor) -> Result<Operand, SyntaxError> {
        let first = at.peek();
        if first == "-" || first.starts_with(|c: char| c.is_ascii_digit()) {
            return at.number();
        }
        let word = at.next()?;
        if word.text == "_" {
            return Ok(Operand::Discard);
        }
        if let Some(register) = self.register(word.text) {
            return Ok(Operand::Register(register));
        }
        if word.text.starts_with('%') {
            return Ok(Operand::Special(word.text[1..].to_string()));
        }
        if !word.is_word() {
            return Err(at.error(format!("`{}` is not an operand", word.text)));
        }
        let name = word.text.to_string();
        Ok(Operand::Symbol(name, at.offset()?))
    }
}

/// A place among the tokens.
pub(super) struct Cursor<'a> {
    tokens: &'a [Token<'a>],
    next: usize,
}

impl<'a> Cursor<'a> {
    /// The next token's text; empty at the end.
    pub fn peek(&self) -> &'a str {
        self.tokens.get(self.next).map_or("", |t| t.text)
    }

    fn peek_second(&self) -> &'a str {
        self.tokens.get(self.next + 1).map_or("", |t| t.text)
    }

    pub fn next(&mut self) -> Result<Token<'a>, SyntaxError> {
        let token = self.tokens.get(self.next).copied();
        self.next += 1;
        token.ok_or_else(|| self.error("the text ends too early"))
    }

    pub fn eat(&mut self, text: &str) -> bool {
        let found = self.peek() == text;
        self.next += found as usize;
        found
    }

    pub fn expect(&mut self, text: &str) -> Result<(), SyntaxError> {
        if self.eat(text) {
            return Ok(());
        }
        Err(self.error(format!("expected `{text}`, found `{}`", self.peek())))
    }

    /// An error on the line of the token read last.
    pub fn error(&self, why: impl Into<String>) -> SyntaxError {
        let last = self
            .next
            .saturating_sub(1)
            .min(self.tokens.len().saturating_sub(1));
        SyntaxError {
            line: self.tokens.get(last).map_or(0, |t| t.line),
            why: why.into(),
        }
    }

    /// True if a `wanted` token comes before any `end` token.
    fn ahead(&self, wanted: impl Fn(&str) -> bool, end: impl Fn(&str) -> bool) -> bool {
        let rest = &self.tokens[self.next..];
        rest.iter()
            .take_while(|t| !end(t.text))
            .any(|t| wanted(t.text))
    }

    fn skip_line(&mut self) {
        if let Some(token) = self.tokens.get(self.next) {
            self.skip_rest_of(token.line);
        }
    }

    fn skip_rest_of(&mut self, line: u32) {
        while self.tokens.get(self.next).is_some_and(|t| t.line == line) {
            self.next += 1;
        }
    }

    /// Parses an integer that must be there.
    pub fn integer(&mut self) -> Result<u64, SyntaxError> {
        match self.number()? {
            Operand::Integer(value) => Ok(value),
            _ => Err(self.error("expected a whole number")),
        }
    }

    /// Parses a number of any kind and returns its bits.
    pub fn number_bits(&mut self) -> Result<u64, SyntaxError> {
        Ok(match self.number()? {
            Operand::Integer(bits) | Operand::Double(bits) => bits,
            Operand::Single(bits) => bits as u64,
            _ => return Err(self.error("expected a number")),
        })
    }

    /// `+4`, `+-4`, `-4` or nothing.
    fn offset(&mut self) -> Result<i64, SyntaxError> {
        match self.eat("+") || self.peek() == "-" {
            true => Ok(self.integer()? as i64),
            false => Ok(0),
        }
    }

    fn number(&mut self) -> Result<Operand, SyntaxError> {
        let negative = self.eat("-");
        let text = self.next()?.text;
        let parsed = match text.get(..2) {
            Some("0f" | "0F") => u32::from_str_radix(&text[2..], 16).map(Operand::Single),
            Some("0d" | "0D") => u64::from_str_radix(&text[2..], 16).map(Operand::Double),
            Some("0x" | "0X") => {
                u64::from_str_radix(text[2..].trim_end_matches('U'), 16).map(Operand::Integer)
            }
            Some("0b" | "0B") => u64::from_str_radix(&text[2..], 2).map(Operand::Integer),
            _ => text.trim_end_matches('U').parse().map(Operand::Integer),
        };
        match parsed {
            Ok(Operand::Integer(value)) if negative => Ok(Operand::Integer(value.wrapping_neg())),
            Ok(value) if !negative => Ok(value),
            _ => match text.parse::<f64>() {
                Ok(value) if text.contains('.') => {
                    let value = if negative { -value } else { value };
                    Ok(Operand::Double(value.to_bits()))
                }
                _ => Err(self.error(format!("`{text}` is not a number"))),
            },
        }
    }
}
