//! Charts that show several scalars.

use crate::messages::chart::Content;
use crate::messages::value::Value as ValueContent;
use crate::messages::{
    Category, Chart as Message, Layout, MarginChartContent, MultilineChartContent, Series,
    TensorProto, TensorShapeProto,
};
use crate::writer::{STRING, SummaryWriter, plugin};
use kiln_tensor::Result;
use prost::Message as _;

/// A chart of [`SummaryWriter::add_custom_scalars`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chart {
    /// A line for each scalar; a tag may be a regular expression.
    Multiline(Vec<String>),
    /// A line with a margin.
    Margin {
        /// The tag of the line.
        value: String,
        /// The tag of the margin's lower edge.
        lower: String,
        /// The tag of its upper edge.
        upper: String,
    },
}

impl Chart {
    /// A line for each tag.
    pub fn multiline<T: Into<String>>(tags: impl IntoIterator<Item = T>) -> Chart {
        Chart::Multiline(tags.into_iter().map(Into::into).collect())
    }

    /// A line between two others, by their tags.
    pub fn margin(
        value: impl Into<String>,
        lower: impl Into<String>,
        upper: impl Into<String>,
    ) -> Chart {
        Chart::Margin {
            value: value.into(),
            lower: lower.into(),
            upper: upper.into(),
        }
    }

    fn message(self, title: &str) -> Message {
        let content = match self {
            Chart::Multiline(tag) => Content::Multiline(MultilineChartContent { tag }),
            Chart::Margin {
                value,
                lower,
                upper,
            } => Content::Margin(MarginChartContent {
                series: vec![Series {
                    value,
                    lower,
                    upper,
                }],
            }),
        };
        Message {
            title: title.into(),
            content: Some(content),
        }
    }
}

impl SummaryWriter {
    /// Adds charts of scalars, by category and title, to the tab "Custom Scalars". The last layout of a run counts.
    ///
    /// ```no_run
    /// use kiln_tensorboard::{Chart, SummaryWriter};
    /// let writer = SummaryWriter::new("runs/first")?;
    /// let losses = Chart::multiline(["loss/train", "loss/val"]);
    /// writer.add_custom_scalars([("loss", [("both", losses)])])?;
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_custom_scalars<'a, C: IntoIterator<Item = (&'a str, Chart)>>(
        &self,
        layout: impl IntoIterator<Item = (&'a str, C)>,
    ) -> Result<()> {
        let category = layout.into_iter().map(|(title, charts)| Category {
            title: title.into(),
            chart: charts
                .into_iter()
                .map(|(title, chart)| chart.message(title))
                .collect(),
        });
        let layout = Layout {
            version: 0,
            category: category.collect(),
        };
        let tensor = TensorProto {
            dtype: STRING,
            tensor_shape: Some(TensorShapeProto::default()),
            string_val: vec![layout.encode_to_vec()],
            ..TensorProto::default()
        };
        let (tag, value) = ("custom_scalars__config__", ValueContent::Tensor(tensor));
        let plugin = plugin("custom_scalars", Vec::new());
        self.add_value("add_custom_scalars", tag, None, value, Some(plugin))
    }
}
