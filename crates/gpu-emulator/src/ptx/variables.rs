//! Declarations of variables and parameters.

use super::parser::Cursor;
use super::{Space, SyntaxError, Type, Variable};

/// Parses the variables of one declaration up to the token that ends it (`;`, `,` of a parameter list, or `)`).
pub(super) fn declaration(at: &mut Cursor, in_list: bool) -> Result<Vec<Variable>, SyntaxError> {
    let (mut space, mut align, mut element, mut vector) = (Space::Global, 1, None, 1);
    let mut is_extern = false;
    while at.peek().starts_with('.') {
        let word = at.next()?;
        match word.text {
            ".shared" => space = Space::Shared,
            ".global" | ".const" => space = Space::Global,
            ".local" => space = Space::Local,
            ".param" => space = Space::Param,
            ".extern" => is_extern = true,
            ".visible" | ".weak" | ".common" | ".ptr" | ".attribute" => {}
            ".align" => align = at.integer()? as usize,
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            other => match Type::parse(&other[1..]) {
                Some(ty) => element = Some(ty),
                None => return Err(at.error(format!("unsupported declaration `{other}`"))),
            },
        }
    }
    let ty = element.ok_or_else(|| at.error("a declaration without a type"))?;
    let mut variables = Vec::new();
    loop {
        let name = at.next()?.text.to_string();
        let mut count = dimensions(at)?;
        let mut init = Vec::new();
        if at.eat("=") {
            initializer(at, ty, &mut init)?;
            if count == Some(0) {
                count = Some(init.len() / ty.size());
            }
        }
        let size = count.unwrap_or(1) * ty.size() * vector;
        let align = align.max(ty.size() * vector);
        variables.push(Variable {
            name,
            space,
            align,
            size,
            init,
            is_extern,
        });
        if in_list || !at.eat(",") {
            return Ok(variables);
        }
    }
}

/// The product of dimensions such as `[2][3]`; `[]` is 0, no dimension at all is `None`.
fn dimensions(at: &mut Cursor) -> Result<Option<usize>, SyntaxError> {
    let mut count = None;
    while at.eat("[") {
        let extent = if at.peek() == "]" {
            0
        } else {
            at.integer()? as usize
        };
        at.expect("]")?;
        count = Some(count.unwrap_or(1) * extent);
    }
    Ok(count)
}

/// Appends the bytes of `{1, 2, {3}}` or of one number.
fn initializer(at: &mut Cursor, ty: Type, bytes: &mut Vec<u8>) -> Result<(), SyntaxError> {
    if at.eat("{") {
        loop {
            initializer(at, ty, bytes)?;
            if !at.eat(",") {
                return at.expect("}");
            }
        }
    }
    let bits = at.number_bits()?;
    bytes.extend_from_slice(&bits.to_le_bytes()[..ty.size()]);
    Ok(())
}

/// Parses `(.param .u64 a, .param .align 8 .b8 b[16])`, if there is one.
pub(super) fn parameters(at: &mut Cursor) -> Result<Vec<Variable>, SyntaxError> {
    let mut list = Vec::new();
    if !at.eat("(") {
        return Ok(list);
    }
    while !at.eat(")") {
        list.extend(declaration(at, true)?);
        at.eat(",");
    }
    Ok(list)
}
