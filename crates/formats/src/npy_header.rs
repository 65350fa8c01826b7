//! The header of a `.npy` file: a Python dict literal with the keys descr, fortran_order and shape.

use crate::fault::Fault;
use kiln_tensor::DType;

pub(crate) const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The header and the bytes before it are padded to a multiple of this.
const ALIGNMENT: usize = 64;

/// The codes of NumPy's dtypes without their byte order.
pub(crate) const CODES: [(&str, DType); 12] = [
    ("b1", DType::Bool),
    ("u1", DType::U8),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
];

/// The layout of the bytes of an array.
#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    pub(crate) dtype: DType,
    pub(crate) big_endian: bool,
    pub(crate) fortran_order: bool,
    pub(crate) shape: Vec<usize>,
}

impl Header {
    /// The number of bytes of the elements.
    pub(crate) fn bytes(&self) -> Result<u64, String> {
        let size = Some(self.dtype.size() as u64);
        let dims = self.shape.iter();
        let bytes = match self.shape.contains(&0) {
            true => Some(0),
            false => dims.fold(size, |n, d| n?.checked_mul(*d as u64)),
        };
        bytes.ok_or_else(|| format!("an array of shape {:?} can't be addressed", self.shape))
    }

    /// The start of a file: all but the elements, in the oldest format that fits.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Fault> {
        let Some((code, _)) = CODES.iter().find(|(_, d)| *d == self.dtype) else {
            let dtype = self.dtype;
            return Err(Fault::unsupported(format!(
                "NumPy has no {dtype}; convert the tensor, such as with to_dtype(DType::F32)"
            )));
        };
        let order = if self.dtype.size() == 1 { '|' } else { '<' };
        let mut shape: String = self.shape.iter().map(|d| format!("{d}, ")).collect();
        if self.shape.len() > 1 {
            shape.truncate(shape.len() - 2);
        }
        let shape = shape.trim_end();
        let fortran = if self.fortran_order { "True" } else { "False" };
        let mut text = format!(
            "{{'descr': '{order}{code}', 'fortran_order': {fortran}, 'shape': ({shape}), }}"
        );
        let prefix = |wide| MAGIC.len() + if wide { 6 } else { 4 };
        let padded = |wide, len: usize| (prefix(wide) + len + 1).next_multiple_of(ALIGNMENT);
        let wide = padded(false, text.len()) - prefix(false) > usize::from(u16::MAX);
        let len = padded(wide, text.len()) - prefix(wide);
        text.extend(std::iter::repeat_n(' ', len - 1 - text.len()));
        text.push('\n');
        let mut bytes = MAGIC.to_vec();
        bytes.extend([if wide { 2 } else { 1 }, 0]);
        match wide {
            true => bytes.extend((len as u32).to_le_bytes()),
            false => bytes.extend((len as u16).to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        Ok(bytes)
    }

    /// Reads the dict.
    pub(crate) fn parse(text: &str) -> Result<Header, Fault> {
        let mut literal = Literal { text, at: 0 };
        let (mut dtype, mut fortran_order, mut shape) = (None, None, None);
        literal.expect('{')?;
        while !literal.accept('}') {
            let key = literal.string()?;
            literal.expect(':')?;
            let is_duplicate = match key {
                "descr" => dtype.replace(literal.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(literal.boolean()?).is_some(),
                "shape" => shape.replace(literal.tuple()?).is_some(),
                _ => return Err(format!("the key '{key}' is not known").into()),
            };
            if is_duplicate {
                return Err(format!("the key '{key}' comes twice").into());
            }
            if !literal.accept(',') {
                literal.expect('}')?;
                break;
            }
        }
        if let Some(c) = literal.peek() {
            return Err(literal.unexpected("the end", c).into());
        }
        let missing = |key| Fault::from(format!("the key '{key}' is missing"));
        let (dtype, big_endian) = dtype.ok_or_else(|| missing("descr"))?;
        Ok(Header {
            dtype,
            big_endian,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }
}

/// A parser for the part of Python's literals that headers use.
struct Literal<'a> {
    text: &'a str,
    /// The position in the text, in bytes.
    at: usize,
}

impl<'a> Literal<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips blanks, and returns the next character without consuming it.
    fn peek(&mut self) -> Option<char> {
        self.at = self.text.len() - self.rest().trim_ascii_start().len();
        self.rest().chars().next()
    }

    fn accept(&mut self, c: char) -> bool {
        let matches = self.peek() == Some(c);
        self.at += if matches { c.len_utf8() } else { 0 };
        matches
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        match self.accept(c) {
            true => Ok(()),
            false => Err(self.expected(&format!("'{c}'"))),
        }
    }

    fn expected(&mut self, what: &str) -> String {
        match self.peek() {
            Some(c) => self.unexpected(what, c),
            None => format!("{what} is expected where it ends"),
        }
    }

    fn unexpected(&self, what: &str, c: char) -> String {
        format!("{what} is expected in place of {c:?} at byte {}", self.at)
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let Some(quote @ ('\'' | '"')) = self.peek() else {
            return Err(self.expected("a string"));
        };
        let inner = &self.rest()[1..];
        let Some(end) = inner.find(quote) else {
            return Err(format!("the string at byte {} does not end", self.at));
        };
        self.at += end + 2;
        Ok(&inner[..end])
    }

    /// Parses a dtype, and whether its bytes are in big-endian order.
    fn descr(&mut self) -> Result<(DType, bool), Fault> {
        if self.peek() == Some('[') {
            let message = "arrays of records are not supported; save each field by itself";
            return Err(Fault::unsupported(message));
        }
        let descr = self.string()?;
        let order = descr.chars().next().filter(|c| "<>|=".contains(*c));
        let code = &descr[order.map_or(0, char::len_utf8)..];
        let big_endian = match order {
            Some('>') => true,
            Some('=') | None => cfg!(target_endian = "big"),
            _ => false,
        };
        if let Some((_, dtype)) = CODES.iter().find(|(c, _)| *c == code) {
            return Ok((*dtype, big_endian));
        }
        let kind = match code.chars().next() {
            Some('O') => "Python objects",
            Some('U' | 'S' | 'a') => "strings",
            Some('c') => "complex numbers",
            Some('M' | 'm') => "dates and times",
            Some('V') => "raw bytes",
            _ => "an unknown dtype",
        };
        let message = format!("the dtype '{descr}' ({kind}) is not supported");
        Err(Fault::unsupported(message))
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.peek();
        for (word, value) in [("True", true), ("False", false)] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.expected("True or False"))
    }

    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        let mut items = Vec::new();
        self.expect('(')?;
        while !self.accept(')') {
            items.push(self.number()?);
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(items)
    }

    fn number(&mut self) -> Result<usize, String> {
        self.peek();
        let rest = self.rest();
        let len = rest.bytes().take_while(u8::is_ascii_digit).count();
        if len == 0 {
            return Err(self.expected("a size"));
        }
        self.at += len;
        // Python 2 wrote long integers as `3L`.
        self.at += usize::from(self.rest().starts_with('L'));
        let number = rest[..len].parse();
        number.map_err(|_| format!("the size {} is too large", &rest[..len]))
    }
}
