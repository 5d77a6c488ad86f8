//! The one way to the terminal: data on standard output, everything else on standard error.

use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// The styles that are used.
pub(crate) const ADDED: Style = AnsiColor::Green.on_default();
pub(crate) const REMOVED: Style = AnsiColor::Red.on_default();
pub(crate) const CHANGED: Style = AnsiColor::Yellow.on_default();
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const INFO: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const STRONG: Style = Style::new().bold();
pub(crate) const FAINT: Style = Style::new().dimmed();

/// Prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    color: ColorChoice,
}

impl Printer {
    pub(crate) const fn new(color: ColorChoice) -> Self {
        Self { color }
    }

    /// Writes the result of a command. A reader that went away (`| head`) is no error.
    pub(crate) fn data(self, text: &str) -> anyhow::Result<()> {
        let mut out = AutoStream::new(io::stdout().lock(), self.color);
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(anyhow::Error::new(error).context("cannot write to standard output"))
            }
            _ => Ok(()),
        }
    }

    /// Tells why the command failed.
    pub(crate) fn error(self, error: &anyhow::Error) {
        let text = visible(&format!("{error:#}"));
        self.told(&format!("{ERROR}error{ERROR:#}: {text}\n"));
    }

    /// Tells something beside the result.
    pub(crate) fn note(self, text: &str) {
        self.told(text);
    }

    fn told(self, text: &str) {
        let mut out = AutoStream::new(io::stderr().lock(), self.color);
        // Nobody to tell when standard error is gone.
        let _ = out.write_all(text.as_bytes());
    }
}

/// Text from files or their names, with everything that a terminal would act on written out: control characters and
/// those that change the direction of writing. Line breaks stay.
pub(crate) fn visible(text: &str) -> String {
    let acts = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    if !text.contains(acts) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if acts(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// [`visible`], on one line.
pub(crate) fn visible_line(text: &str) -> String {
    visible(text).replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_steered() {
        assert_eq!(visible("a\u{1b}[31mb\u{202e}\r\n"), "a\\u{1b}[31mb\\u{202e}\\r\n");
        assert_eq!(visible_line("a\nb"), "a\\nb");
        assert_eq!(visible("größe ✓"), "größe ✓");
    }
}
