//! Tabs where YAML wants spaces: the parser lets some pass that Go's reader, and so kubectl and Flux, refuse.

use granit_parser::{Event, ScalarStyle, Span, StructureStyle};

#[derive(Clone, Copy, PartialEq)]
enum Last {
    /// The beginning of a collection.
    Collection,
    /// A plain scalar, which Go reads on over blank lines to see whether it goes on.
    Plain,
    Other,
}

/// Looks at what stands between the tokens of one text.
pub(crate) struct Tabs<'a> {
    text: &'a str,
    /// Where the last token ended.
    from: usize,
    /// For each open collection, whether it is in flow style, where tabs are white space, and its column.
    open: Vec<(bool, usize)>,
    /// What that token was.
    last: Last,
}

impl<'a> Tabs<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, from: 0, open: Vec::new(), last: Last::Other }
    }

    /// Byte offset of a tab before this event that indents something.
    pub(crate) fn before(&mut self, event: &Event<'_>, span: &Span) -> Option<usize> {
        let (start, end) = (span.start.byte_offset()?, span.end.byte_offset()?);
        let in_flow = self.open.last().is_some_and(|(flow, _)| *flow);
        let bad = match event {
            _ if in_flow => None,
            Event::Scalar(_, ScalarStyle::Literal | ScalarStyle::Folded, ..) => {
                self.bad(start).or_else(|| self.in_block_scalar(start, end))
            }
            _ => self.bad(start),
        };
        match event {
            Event::SequenceStart(style, ..) | Event::MappingStart(style, ..) => {
                self.open.push((in_flow || *style == StructureStyle::Flow, span.start.col()));
                self.from = self.from.max(start);
                self.last = Last::Collection;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
                if in_flow {
                    self.from = self.from.max(end);
                    self.last = Last::Other;
                }
            }
            Event::Scalar(_, style, ..) => {
                self.from = self.from.max(end);
                self.last = if *style == ScalarStyle::Plain { Last::Plain } else { Last::Other };
            }
            Event::Alias(_) => {
                self.from = self.from.max(end);
                self.last = Last::Other;
            }
            _ => {}
        }
        bad
    }

    fn bad(&self, start: usize) -> Option<usize> {
        // Few texts have tabs at all, and looking between tokens reads each byte once.
        let gap = self.text.get(self.from..start).filter(|gap| gap.contains('\t'))?;
        // Block scalars end with their line.
        let fresh = self.text.get(..self.from).is_some_and(|before| before.ends_with('\n'));
        let mut offset = self.from;
        for (i, line) in gap.split_inclusive('\n').enumerate() {
            let whole = line.ends_with('\n');
            if (i > 0 || fresh) && whole {
                // A line of nothing but white space, or of a comment.
                let rest = line.trim_start_matches([' ', '\t']);
                let lead = line.len() - rest.len();
                if rest.starts_with(['\n', '\r', '#'])
                    && let Some(tab) = line.get(..lead).and_then(|lead| lead.find('\t'))
                    && (self.last != Last::Plain
                        || self.open.last().is_some_and(|(_, column)| tab <= *column))
                {
                    return Some(offset + tab);
                }
            }
            offset += line.len();
        }
        // What the token, or its tag or anchor, stands behind on its line.
        let begin = self.text.get(..start)?.rfind('\n').map_or(0, |at| at + 1);
        let begin = match begin < self.from {
            false => begin,
            true if self.last == Last::Collection => self.from,
            true => return None,
        };
        let line = self.text.get(begin..start)?;
        let lead = line.len() - line.trim_start_matches([' ', '\t', '-', '?']).len();
        line.get(..lead)?.find('\t').map(|tab| begin + tab)
    }

    /// In a block scalar, a tab that stands where the indentation is still to be found, or is not reached yet.
    fn in_block_scalar(&self, start: usize, end: usize) -> Option<usize> {
        self.text.get(self.from..end).filter(|source| source.contains('\t'))?;
        // The header is the last line before the content that says anything.
        let (mut header, mut content) = ("", self.from);
        let mut offset = self.from;
        for line in self.text.get(self.from..start)?.split_inclusive('\n') {
            offset += line.len();
            if !line.trim().is_empty() {
                (header, content) = (line, offset);
            }
        }
        let indicator = header.split(" #").next().unwrap_or_default().split_whitespace().next_back();
        if indicator.is_some_and(|indicator| indicator.contains(|c: char| c.is_ascii_digit())) {
            return None;
        }
        let mut offset = content;
        let mut indent = None;
        for line in self.text.get(content..end)?.split_inclusive('\n') {
            let rest = line.trim_start_matches(' ');
            let spaces = line.len() - rest.len();
            if rest.starts_with('\t') && indent.is_none_or(|indent| spaces < indent) {
                return Some(offset + spaces);
            }
            if !rest.trim_end_matches(['\n', '\r']).is_empty() {
                indent.get_or_insert(spaces);
            }
            offset += line.len();
        }
        None
    }
}
