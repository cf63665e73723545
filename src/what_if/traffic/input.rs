//! A file of lines, or stdin; plain, gzip or zstd by its first bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek as _};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::api::request_size::MESSAGE_BYTES_MAX;

/// As much as a body of /json.
const LINE_BYTES_MAX: usize = MESSAGE_BYTES_MAX;
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const BUFFER_BYTES: usize = 256 << 10;

/// Lines of a file.
pub(super) struct Input {
    lines: Box<dyn BufRead>,
    line: Vec<u8>,
    /// With the position up to which it was read, and its length, compressed or not.
    file: Option<(File, u64)>,
}

/// Frames of zstd one after the other, as several compressed files in one, and parallel
/// compressors, have them.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
}

impl Input {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut opened = None;
        let from: Box<dyn Read> = if path.as_os_str() == "-" {
            Box::new(io::stdin())
        } else {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_file() {
                opened = Some((file.try_clone()?, metadata.len()));
            }
            Box::new(file)
        };
        let lines = decompressed(BufReader::with_capacity(BUFFER_BYTES, from))?;
        Ok(Self { lines, line: Vec::new(), file: opened })
    }

    /// The next line, or why it is invalid; `None` at the end.
    pub(super) fn read_line(&mut self) -> io::Result<Option<Result<&[u8], String>>> {
        self.line.clear();
        let mut bounded = (&mut *self.lines).take(LINE_BYTES_MAX as u64 + 1);
        if bounded.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        if self.line.len() > LINE_BYTES_MAX && self.line.last() != Some(&b'\n') {
            self.lines.skip_until(b'\n')?;
            return Ok(Some(Err(format!("it has more than {LINE_BYTES_MAX} bytes"))));
        }
        Ok(Some(Ok(&self.line)))
    }

    pub(super) fn percent(&self) -> Option<u64> {
        let (mut file, bytes) = self.file.as_ref().map(|(file, bytes)| (file, *bytes))?;
        let read = file.stream_position().ok()?;
        read.saturating_mul(100).checked_div(bytes)
    }
}

fn decompressed(mut from: impl BufRead + 'static) -> io::Result<Box<dyn BufRead>> {
    let mut head = Vec::new();
    (&mut from).take(ZSTD.len() as u64).read_to_end(&mut head)?;
    let is = |magic: &[u8]| head.starts_with(magic);
    let is_gzip = is(GZIP);
    let is_zstd = is(ZSTD);
    let whole = Cursor::new(head).chain(from);
    let buffered = |read: Box<dyn Read>| Box::new(BufReader::with_capacity(BUFFER_BYTES, read));
    Ok(if is_gzip {
        buffered(Box::new(MultiGzDecoder::new(whole)))
    } else if is_zstd {
        buffered(Box::new(Frames { source: whole, decoder: FrameDecoder::new() }))
    } else {
        Box::new(whole)
    })
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(io::Error::other)?;
                continue;
            }
            if self.source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {}
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = (&mut self.source).take(length.into());
                    io::copy(&mut skipped, &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(bytes: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        decompressed(Cursor::new(bytes))?.read_to_string(&mut text)?;
        Ok(text)
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        io::Write::write_all(&mut encoder, text.as_bytes()).expect("memory is writable");
        encoder.finish().expect("memory is writable")
    }

    fn zstd(text: &str) -> Vec<u8> {
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    }

    #[test]
    fn files_are_decompressed_by_their_first_bytes() {
        let long = "a line\n".repeat(100_000);
        assert_eq!(read(long.clone().into()).expect("plain"), long);
        assert_eq!(read(gzip(&long)).expect("gzip"), long);
        assert_eq!(read(zstd(&long)).expect("zstd"), long);
        assert_eq!(read(Vec::new()).expect("empty"), "");
        assert_eq!(read(vec![0x28]).expect("shorter than a magic number"), "(");
    }

    #[test]
    fn compressed_files_one_after_the_other_are_one() {
        let one = "one\n";
        let other = "other\n";
        let both = read([gzip(one), gzip(other)].concat()).expect("two members");
        assert_eq!(both, "one\nother\n");
        // A frame to skip: its magic number, its length and content.
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
        let both = read([zstd(one), skipped, zstd(other)].concat()).expect("two frames");
        assert_eq!(both, "one\nother\n");
    }

    #[test]
    fn a_file_that_is_cut_off_is_an_error() {
        for mut bytes in [gzip("a line\n"), zstd("a line\n")] {
            bytes.truncate(bytes.len() - 6);
            assert!(read(bytes).is_err());
        }
    }
}
