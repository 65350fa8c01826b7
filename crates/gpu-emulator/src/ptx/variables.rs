//! Declarations of variables and parameters.

use super::parser::Cursor;
use super::{Space, SyntaxError, Type, Variable};

/// Parses the variables of one declaration up to the token that ends it (`;`, `,` of a parameter list, or `)`).
pub(super) fn declaration(
    cursor: &mut Cursor,
    in_list: bool,
) -> Result<Vec<Variable>, SyntaxError> {
    let (mut space, mut align, mut element, mut vector) = (Space::Global, 1, None, 1);
    let mut is_extern = false;
    while cursor.peek().starts_with('.') {
        let word = cursor.next()?;
        match word.text {
            ".shared" => space = Space::Shared,
            ".global" | ".const" => space = Space::Global,
            ".local" => space = Space::Local,
            ".param" => space = Space::Param,
            ".extern" => is_extern = true,
            ".visible" | ".weak" | ".common" | ".ptr" | ".attribute" => {}
            ".align" => align = cursor.integer()? as usize,
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            other => match Type::parse(&other[1..]) {
                Some(ty) => element = Some(ty),
                None => return Err(cursor.error(format!("unsupported declaration `{other}`"))),
            },
        }
    }
    let ty = element.ok_or_else(|| cursor.error("a declaration without a type"))?;
    let mut variables = Vec::new();
    loop {
        let name = cursor.next()?.text.to_string();
        let mut count = dimensions(cursor)?;
        let mut init = Vec::new();
        if cursor.eat("=") {
            initializer(cursor, ty, &mut init)?;
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
        if in_list || !cursor.eat(",") {
            return Ok(variables);
        }
    }
}

/// The product of dimensions such as `[2][3]`; `[]` is 0, no dimension at all is `None`.
fn dimensions(cursor: &mut Cursor) -> Result<Option<usize>, SyntaxError> {
    let mut count = None;
    while cursor.eat("[") {
        let extent = if cursor.peek() == "]" {
            0
        } else {
            cursor.integer()? as usize
        };
        cursor.expect("]")?;
        count = Some(count.unwrap_or(1) * extent);
    }
    Ok(count)
}

/// Appends the bytes of `{1, 2, {3}}` or of one number.
fn initializer(cursor: &mut Cursor, ty: Type, bytes: &mut Vec<u8>) -> Result<(), SyntaxError> {
    if cursor.eat("{") {
        loop {
            initializer(cursor, ty, bytes)?;
            if !cursor.eat(",") {
                return cursor.expect("}");
            }
        }
    }
    let bits = cursor.number_bits()?;
    bytes.extend_from_slice(&bits.to_le_bytes()[..ty.size()]);
    Ok(())
}

/// Parses `(.param .u64 a, .param .align 8 .b8 b[16])`, if there is one.
pub(super) fn parameters(cursor: &mut Cursor) -> Result<Vec<Variable>, SyntaxError> {
    let mut list = Vec::new();
    if !cursor.eat("(") {
        return Ok(list);
    }
    while !cursor.eat(")") {
        list.extend(declaration(cursor, true)?);
        cursor.eat(",");
    }
    Ok(list)
}
