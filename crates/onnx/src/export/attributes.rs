//! Attributes of nodes.

use crate::proto::{AttributeProto, AttributeType, GraphProto};

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(kind.into()),
        ..AttributeProto::default()
    }
}

pub(super) fn int(name: &str, i: impl Into<i64>) -> AttributeProto {
    AttributeProto {
        i: Some(i.into()),
        ..attribute(name, AttributeType::Int)
    }
}

pub(super) fn float(name: &str, f: f64) -> AttributeProto {
    AttributeProto {
        f: Some(f as f32),
        ..attribute(name, AttributeType::Float)
    }
}

pub(super) fn text(name: &str, text: &str) -> AttributeProto {
    AttributeProto {
        s: Some(text.into()),
        ..attribute(name, AttributeType::String)
    }
}

pub(super) fn ints(name: &str, ints: impl IntoIterator<Item = usize>) -> AttributeProto {
    AttributeProto {
        ints: ints.into_iter().map(|i| i as i64).collect(),
        ..attribute(name, AttributeType::Ints)
    }
}

pub(super) fn graph(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        g: Some(graph),
        ..attribute(name, AttributeType::Graph)
    }
}
