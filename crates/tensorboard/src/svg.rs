//! Figures drawn from SVG.

use crate::image::Figure;
use crate::writer::{SummaryWriter, or_invalid};
use kiln_tensor::{MaybeInt, Result};
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{FontResolver, Options, Tree, fontdb};
use std::sync::{Arc, OnceLock};

/// The maximum number of pixels of a drawing: 256 MiB.
const MAX_PIXELS: u64 = 1 << 26;

impl SummaryWriter {
    /// Adds a figure from the text of an SVG, in its own size on white. Texts are drawn with the fonts of the system;
    /// files that it refers to are not read.
    ///
    /// # Errors
    /// As all methods, or if the text is not an SVG, or is too large to draw.
    #[track_caller]
    pub fn add_figure_svg(
        &self,
        tag: &str,
        svg: &str,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let drawn = or_invalid("add_figure_svg", draw(svg))?;
        let figure = Figure {
            width: drawn.width() as usize,
            height: drawn.height() as usize,
            rgba: drawn.data(),
        };
        self.add_figure(tag, figure, global_step)
    }
}

fn draw(svg: &str) -> Result<Pixmap, String> {
    static FONTS: OnceLock<Arc<fontdb::Database>> = OnceLock::new();
    let fonts = FONTS.get_or_init(|| {
        let mut fonts = fontdb::Database::new();
        fonts.load_system_fonts();
        Arc::new(fonts)
    });
    let mut options = Options {
        fontdb: fonts.clone(),
        ..Options::default()
    };
    options.image_href_resolver.resolve_string = Box::new(|_, _| None);
    let named = FontResolver::default_font_selector();
    options.font_resolver.select_font =
        Box::new(move |font, fonts| named(font, fonts).or_else(|| any_font(fonts)));
    let tree = Tree::from_str(svg, &options).map_err(|e| e.to_string())?;
    let size = tree.size().to_int_size();
    let (width, height) = (size.width(), size.height());
    let fits = u64::from(width) * u64::from(height) <= MAX_PIXELS;
    let pixels = fits.then(|| Pixmap::new(width, height)).flatten();
    let mut pixels = pixels.ok_or_else(|| {
        format!("{width} by {height} pixels are too many: at most {MAX_PIXELS} are drawn")
    })?;
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::identity(), &mut pixels.as_mut());
    Ok(pixels)
}

/// The font of texts whose fonts the system lacks, which would not be drawn otherwise.
fn any_font(fonts: &fontdb::Database) -> Option<fontdb::ID> {
    let plain = |f: &&fontdb::FaceInfo| {
        let sans = f.families.iter().any(|(name, _)| name.contains("Sans"));
        let normal = f.style == fontdb::Style::Normal && f.weight == fontdb::Weight::NORMAL;
        (normal, sans, !f.monospaced)
    };
    fonts.faces().max_by_key(plain).map(|f| f.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_have_a_white_background_and_read_no_files() {
        let head = r#"<svg xmlns="http://www.w3.org/2000/svg" width="3" height="1">"#;
        let red = r##"<rect x="1" width="1" height="1" fill="#f00"/>"##;
        let file = r#"<image href="/etc/hostname" width="1" height="1"/>"#;
        let drawn = draw(&format!("{head}{red}{file}</svg>")).unwrap();
        assert_eq!((drawn.width(), drawn.height()), (3, 1));
        let white = [255; 4];
        assert_eq!(drawn.data(), [white, [255, 0, 0, 255], white].concat());
        // Where the system has fonts, all texts are drawn.
        let mut fonts = fontdb::Database::new();
        fonts.load_system_fonts();
        let text = r#"<text y="1" font-size="3" font-family="No such font">M</text>"#;
        let text = draw(&format!("{head}{text}</svg>")).unwrap();
        assert_eq!(text.data().iter().all(|b| *b == 255), fonts.is_empty());
        for side in ["1e9", "1e5"] {
            let large = format!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" width="{side}" height="{side}"></svg>"#
            );
            assert!(draw(&large).unwrap_err().contains("too many"));
        }
        assert!(draw("<svg").is_err());
    }
}
