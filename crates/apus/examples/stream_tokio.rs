//! Streams of bytes as tokio's `AsyncRead` and `AsyncWrite` (feature `tokio`): lines to a server, and its answers.

use apus::{Config, Node, Stream, StreamListener, StreamOptions};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, split};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let listener = StreamListener::bind(&server, 4000)?;
    let address = listener.local_addr();
    let server_task = tokio::spawn(async move {
        let (stream, _) = listener.accept_async().await?;
        let (reader, mut writer) = split(stream);
        let mut lines = BufReader::new(reader).lines();
        while let Some(line) = lines.next_line().await? {
            writer.write_all(format!("{} has {} bytes\n", line, line.len()).as_bytes()).await?;
        }
        writer.shutdown().await
    });

    let node = Node::start(&config)?;
    let stream = Stream::connect_async(&node, address, &StreamOptions::new()).await?;
    let (mut reader, mut writer) = split(stream);
    for word in ["swift", "apus apus"] {
        writer.write_all(format!("{word}\n").as_bytes()).await?;
    }
    writer.shutdown().await?;
    let mut answers = String::new();
    reader.read_to_string(&mut answers).await?;
    print!("{answers}");
    server_task.await??;
    Ok(())
}
