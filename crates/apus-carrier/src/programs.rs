//! Programs of this host: they connect, introduce connections, and are served until they disconnect.

use std::future::{Future, poll_fn};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use apus_sockets::introduction::Tuple;
use async_io::Timer;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;

use crate::carried::Carried;
use crate::diagnosis;
use crate::guests::{Guest, Reserve};
use crate::joining::{ANSWER_WAIT, join, search};
use crate::mirror::Mirror;
use crate::pairing::WAIT;
use crate::program::{Introduced, ProgramChannel, Purpose};
use crate::reactor::{Source, within};
use crate::shared::CarrierState;
use crate::status::Incident;
use crate::tasks::spawn;

/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts programs.
pub(crate) async fn accept(
    shared: Arc<CarrierState>,
    listener: Source<UnixListener>,
    reserve: Reserve,
) {
    loop {
        match poll_fn(|context| listener.poll(context, UnixListener::accept)).await {
            Ok((socket, _)) => admit(&shared, ProgramChannel::new(socket.into())),
            Err(error) => {
                let line = || format!("cannot accept programs: {error}");
                shared.counters.note(Incident::NoDescriptor, line);
                reserve.give_up();
                if let Ok((socket, _)) = listener.get().accept() {
                    reserve.take(ProgramChannel::new(socket.into())); // The program then stays with TCP.
                }
                Timer::after(PAUSE).await;
            }
        }
        reserve.refill();
    }
}

/// Serves a new socket, if it belongs to a process of this user and there is room for it.
fn admit(shared: &Arc<CarrierState>, channel: ProgramChannel) {
    let uid = geteuid().as_raw();
    let theirs = getsockopt(&channel, sockopt::PeerCredentials).map(|process| process.uid());
    if theirs != Ok(uid) {
        let line = || "refused a process of another user".to_owned();
        return shared.counters.note(Incident::ForeignUser, line);
    }
    match (Guest::come(&shared.guests), Source::new(channel)) {
        (Some(guest), Ok(channel)) => spawn(serve(Arc::clone(shared), channel, guest, uid)),
        _ => no_room(shared),
    }
}

fn no_room(shared: &CarrierState) {
    let line = || "no descriptors for a further process or connection: it stays with TCP".into();
    shared.counters.note(Incident::NoDescriptor, line);
}

/// Serves a program's socket. The process exists while it is open, and it may introduce a connection.
async fn serve(
    shared: Arc<CarrierState>,
    channel: Source<ProgramChannel>,
    mut guest: Guest,
    uid: u32,
) {
    if poll_fn(|context| channel.poll(context, ProgramChannel::has_message)).await.is_err() {
        return;
    }
    if !guest.introduces() {
        return no_room(&shared);
    }
    let introduced = match channel.get().purpose() {
        Ok(Purpose::Bell(number)) => return keep(&shared, number, channel, guest).await,
        Ok(Purpose::Introduces(introduced)) => Some(introduced),
        Err(_) => None,
    };
    let Some(introduced) = introduced.filter(|it| is_true(it, uid)) else {
        let line = || {
            "refused a connection that the introducing process does not have, or no longer has"
                .to_owned()
        };
        return shared.counters.note(Incident::NotIntroduced, line);
    };
    if !shared.carries.load(Ordering::Relaxed) {
        let line = || "the carrier is switched off: a connection stays with TCP".to_owned();
        return shared.counters.note(Incident::Off, line);
    }
    let bell = shared.bells.bell(introduced.introduction.number);
    // A program that gives up ends the search.
    let mut search = Box::pin(search(&shared, &introduced));
    let found = poll_fn(|context| match search.as_mut().poll(context) {
        Poll::Ready(stream) => Poll::Ready(stream),
        Poll::Pending => channel.poll(context, ProgramChannel::check).map(|_| None),
    });
    let Some(stream) = found.await else { return };
    drop(search);
    let Introduced { segment, introduction } = introduced;
    let Some((bell, _its_guest)) = within(ANSWER_WAIT, bell).await else { return };
    let Ok(bell) = Source::new(bell) else { return };
    let joined = join(&stream, channel.get(), introduction.accepted).await;
    let Some(shown) = joined else { return };
    let tuple = introduction.tuple();
    let listed = shared.begin_carrying(tuple);
    let mut is_asked = false;
    let mut carried = Carried::new(Mirror::new(segment, shown, channel, bell), stream);
    // The end of its socket informs the remaining program whether the connection ended or was lost.
    let mut carry = poll_fn(|context| {
        listed.is_task(context.waker());
        if !is_asked && !shared.carries.load(Ordering::Acquire) {
            is_asked = carried.ask_to_leave();
        }
        carried.poll(context)
    });
    if let Err(error) = (&mut carry).await {
        let Tuple { client, server } = tuple;
        let line = || format!("the connection of {client} to {server} was lost: {error}");
        shared.counters.note(Incident::Lost, line);
    }
}

/// Keeps a bell's socket until its connection, which is introduced at the same time, takes it.
async fn keep(shared: &CarrierState, number: u128, bell: Source<ProgramChannel>, guest: Guest) {
    let Ok(bell) = bell.into_inner() else { return };
    shared.bells.bring(number, (bell, guest));
    Timer::after(WAIT + ANSWER_WAIT).await;
    shared.bells.forget(number);
}

/// Whether the process has the connection that it introduces.
fn is_true(introduced: &Introduced, uid: u32) -> bool {
    diagnosis::is_socket_of(&introduced.introduction, uid)
}
