//! Tokens → [`Module`], by recursive descent. Registers are resolved through their scopes while reading.

use super::lexer::{Token, tokenize};
use super::variables::{declaration, parameters};
use super::{Function, Instruction, Module, Operand, Register, SourceLine, SyntaxError, Type};
use std::collections::HashMap;

/// Parses a PTX text.
pub(crate) fn parse(source: &str) -> Result<Module, SyntaxError> {
    let tokens = tokenize(source)?;
    let mut cursor = Cursor {
        tokens: &tokens,
        next: 0,
    };
    let mut module = Module::default();
    while cursor.next < tokens.len() {
        top_level(&mut cursor, &mut module)?;
    }
    Ok(module)
}

fn top_level(cursor: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
    match cursor.peek() {
        ".version" | ".target" | ".address_size" | ".loc" => {
            cursor.skip_line();
            Ok(())
        }
        ".file" => file(cursor, module),
        ".section" => {
            while !cursor.next()?.text.eq("}") {}
            Ok(())
        }
        ";" => cursor.expect(";"),
        ".pragma" => {
            while cursor.next()?.text != ";" {}
            Ok(())
        }
        _ => {
            let is_function = cursor.ahead(
                |t| matches!(t, ".entry" | ".func"),
                |t| matches!(t, ";" | "{" | "="),
            );
            if is_function {
                function(cursor, module)
            } else {
                module.variables.extend(declaration(cursor, false)?);
                cursor.expect(";")
            }
        }
    }
}

fn file(cursor: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
    cursor.expect(".file")?;
    let number = cursor.integer()? as u32;
    let name = cursor.next()?.text.trim_matches('"').to_string();
    module.files.insert(number, name);
    while cursor.eat(",") {
        cursor.next()?;
    }
    Ok(())
}

fn function(cursor: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
    let mut function = Function {
        parents: vec![0],
        ..Default::default()
    };
    while matches!(cursor.peek(), ".visible" | ".weak" | ".extern") {
        cursor.next()?;
    }
    function.is_entry = cursor.next()?.text == ".entry";
    function.returns = parameters(cursor)?;
    function.name = cursor.next()?.text.to_string();
    function.parameters = parameters(cursor)?;
    while cursor.peek() != "{" && cursor.peek() != ";" {
        let directive = cursor.next()?;
        if matches!(directive.text, ".maxntid" | ".reqntid") {
            let mut threads = cursor.integer()?;
            while cursor.eat(",") {
                threads *= cursor.integer()?;
            }
            function.max_threads = Some(threads as u32);
        }
        if directive.text == ".reqnctapercluster" {
            let mut blocks = [cursor.integer()? as u32, 1, 1];
            for axis in 1..3 {
                if cursor.eat(",") {
                    blocks[axis] = cursor.integer()? as u32;
                }
            }
            function.cluster = Some(blocks);
        }
    }
    if cursor.eat(";") {
        return Ok(()); // a declaration
    }
    cursor.expect("{")?;
    let mut body = Body {
        function,
        names: vec![HashMap::new()],
        ranges: vec![HashMap::new()],
        scopes: vec![0],
        source: SourceLine::default(),
    };
    while !body.scopes.is_empty() {
        body.statement(cursor, module)?;
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

    fn statement(&mut self, cursor: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
        match cursor.peek() {
            "{" => {
                cursor.next()?;
                self.function.parents.push(self.scope());
                self.names.push(HashMap::new());
                self.ranges.push(HashMap::new());
                self.scopes.push(self.function.parents.len() as u32 - 1);
                Ok(())
            }
            "}" => {
                cursor.next()?;
                self.scopes.pop();
                Ok(())
            }
            ";" => cursor.expect(";"),
            ".loc" => self.location(cursor),
            ".file" => file(cursor, module),
            ".reg" => self.registers(cursor),
            ".pragma" => {
                while cursor.next()?.text != ";" {}
                Ok(())
            }
            ".shared" | ".local" | ".param" | ".global" | ".const" | ".extern" => {
                self.function.variables.extend(declaration(cursor, false)?);
                cursor.expect(";")
            }
            _ if cursor.peek_second() == ":" => self.label(cursor),
            _ => self.instruction(cursor),
        }
    }

    /// `.loc 1 12 3` and, on the same line, `, function_name …, inlined_at …`.
    fn location(&mut self, cursor: &mut Cursor) -> Result<(), SyntaxError> {
        let line = cursor.next()?.line;
        let (file, number) = (cursor.integer()? as u32, cursor.integer()? as u32);
        if number != 0 {
            self.source = SourceLine { file, line: number };
        }
        cursor.skip_rest_of(line);
        if cursor.peek() == "," {
            let line = cursor.next()?.line;
            cursor.skip_rest_of(line);
        }
        Ok(())
    }

    fn registers(&mut self, cursor: &mut Cursor) -> Result<(), SyntaxError> {
        cursor.expect(".reg")?;
        let mut word = cursor.next()?.text;
        if matches!(word, ".v2" | ".v4") {
            return Err(cursor.error("vector registers are unsupported"));
        }
        let ty = loop {
            match Type::parse(&word[1..]) {
                Some(ty) => break ty,
                None if word == ".align" => {
                    cursor.integer()?;
                    word = cursor.next()?.text;
                }
                None => return Err(cursor.error(format!("unsupported register type `{word}`"))),
            }
        };
        let scope = self.scope() as usize;
        loop {
            let name = cursor.next()?.text.to_string();
            if cursor.eat("<") {
                let count = cursor.integer()? as u32;
                cursor.expect(">")?;
                self.ranges[scope].insert(name, (ty, count));
            } else {
                let register = self.new_register(ty);
                self.names[scope].insert(name, register);
            }
            if !cursor.eat(",") {
                return cursor.expect(";");
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
            if let Some(&known) = self.names[scope as usize].get(name) {
                return Some(known);
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

    fn label(&mut self, cursor: &mut Cursor) -> Result<(), SyntaxError> {
        let name = cursor.next()?.text.to_string();
        cursor.expect(":")?;
        let key = (self.scope(), name);
        if cursor.eat(".branchtargets") {
            let mut targets = vec![cursor.next()?.text.to_string()];
            while cursor.eat(",") {
                targets.push(cursor.next()?.text.to_string());
            }
            self.function.tables.insert(key, targets);
            return cursor.expect(";");
        }
        if cursor.peek() == ".callprototype" {
            return Err(cursor.error("calls through a pointer are unsupported"));
        }
        self.function
            .labels
            .insert(key, self.function.instructions.len());
        Ok(())
    }

    fn instruction(&mut self, cursor: &mut Cursor) -> Result<(), SyntaxError> {
        let mut guard = None;
        if cursor.eat("@") {
            let negated = cursor.eat("!");
            let name = cursor.next()?.text;
            let predicate = self
                .register(name)
                .ok_or_else(|| cursor.error(format!("unknown predicate `{name}`")))?;
            guard = Some((predicate, negated));
        }
        let opcode = cursor.next()?;
        if !opcode.text.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(cursor.error(format!("`{}` is not an instruction", opcode.text)));
        }
        let mut operands = Vec::new();
        while cursor.peek() != ";" {
            operands.push(self.operand(cursor)?);
            if !cursor.eat(",") {
                break;
            }
        }
        cursor.expect(";")?;
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

    fn operand(&mut self, cursor: &mut Cursor) -> Result<Operand, SyntaxError> {
        let operand = match cursor.peek() {
            "{" => Operand::Vector(self.sequence(cursor, "{", "}")?),
            "(" => Operand::List(self.sequence(cursor, "(", ")")?),
            "[" => self.address(cursor)?,
            "!" => {
                cursor.next()?;
                let name = cursor.next()?.text;
                match self.register(name) {
                    Some(register) => Operand::Not(register),
                    None => return Err(cursor.error(format!("unknown predicate `{name}`"))),
                }
            }
            _ => self.simple(cursor)?,
        };
        if cursor.eat("|") {
            let second = self.operand(cursor)?;
            return Ok(Operand::Pair(Box::new(operand), Box::new(second)));
        }
        Ok(operand)
    }

    fn sequence(
        &mut self,
        cursor: &mut Cursor,
        open: &str,
        close: &str,
    ) -> Result<Vec<Operand>, SyntaxError> {
        cursor.expect(open)?;
        let mut items = Vec::new();
        while cursor.peek() != close {
            items.push(self.operand(cursor)?);
            if !cursor.eat(",") {
                break;
            }
        }
        cursor.expect(close)?;
        Ok(items)
    }

    fn address(&mut self, cursor: &mut Cursor) -> Result<Operand, SyntaxError> {
        cursor.expect("[")?;
        let base = match self.simple(cursor)? {
            Operand::Symbol(name, offset) => {
                cursor.expect("]")?;
                return Ok(Operand::Address(Box::new(Operand::Symbol(name, 0)), offset));
            }
            other => other,
        };
        if cursor.eat(",") {
            let coordinates = self.sequence(cursor, "{", "}")?;
            cursor.expect("]")?;
            return Ok(Operand::Tensor(Box::new(base), coordinates));
        }
        let offset = cursor.offset()?;
        cursor.expect("]")?;
        Ok(Operand::Address(Box::new(base), offset))
    }

    /// A register, number, special register or symbol with an offset.
    fn simple(&mut self, cursor: &mut Cursor) -> Result<Operand, SyntaxError> {
        let token = cursor.peek();
        if token == "-" || token.starts_with(|c: char| c.is_ascii_digit()) {
            return cursor.number();
        }
        let word = cursor.next()?;
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
            return Err(cursor.error(format!("`{}` is not an operand", word.text)));
        }
        let name = word.text.to_string();
        Ok(Operand::Symbol(name, cursor.offset()?))
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
        let matches = self.peek() == text;
        self.next += matches as usize;
        matches
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
        let remaining = &self.tokens[self.next..];
        remaining
            .iter()
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
