package apus

// #include <apus/apus.h>
import "C"

import (
	"context"
	"runtime"
)

// Code is the number of an error of the library, of which the header apus.h has the list. Numbers keep their meaning in all versions.
type Code int32

// Errors that programs compare with Error.Code.
const (
	ErrInvalid       Code = C.APUS_EINVAL
	ErrConfig        Code = C.APUS_ECONFIG
	ErrAddress       Code = C.APUS_EADDRESS
	ErrTooLong       Code = C.APUS_ETOO_LONG
	ErrNoIdentity    Code = C.APUS_ENO_IDENTITY
	ErrPanic         Code = C.APUS_EPANIC
	ErrClosed        Code = C.APUS_ECLOSED
	ErrCancelled     Code = C.APUS_ECANCELLED
	ErrDeadline      Code = C.APUS_EDEADLINE
	ErrTooManyCalls  Code = C.APUS_ETOO_MANY_CALLS
	ErrOverBudget    Code = C.APUS_EOVER_BUDGET
	ErrTooManyPeers  Code = C.APUS_ETOO_MANY_PEERS
	ErrAnswerTooLong Code = C.APUS_ERESPONSE_TOO_LONG
	ErrNotSent       Code = C.APUS_ENOT_SENT
	ErrNoEngine      Code = C.APUS_ENO_ENGINE
	ErrEngineEnded   Code = C.APUS_EENGINE_ENDED
	ErrPeerTimeout   Code = C.APUS_EPEER_TIMEOUT
	ErrUnreachable   Code = C.APUS_EPEER_UNREACHABLE
	ErrNoSuchPort    Code = C.APUS_ENO_SUCH_PORT
	ErrPanicked      Code = C.APUS_EHANDLER_PANICKED
	ErrMayHaveRun    Code = C.APUS_EMAY_HAVE_EXECUTED
	ErrOtherVersion  Code = C.APUS_EOTHER_VERSION
	ErrTooLongThere  Code = C.APUS_EREQUEST_TOO_LONG
	ErrOverloaded    Code = C.APUS_EOVERLOADED
	ErrWrongPeer     Code = C.APUS_EWRONG_PEER
	ErrHandshake     Code = C.APUS_EHANDSHAKE
	ErrPlainOnly     Code = C.APUS_EPLAIN_ONLY
	ErrForbidden     Code = C.APUS_EFORBIDDEN
	ErrSealedOnly    Code = C.APUS_ESEALED_ONLY
)

// String returns the name of the error in C, such as APUS_EINVAL.
func (c Code) String() string {
	if name := C.apus_error_name(C.int32_t(c)); name != nil {
		return C.GoString(name)
	}
	return "APUS_EOTHER"
}

// Error is an error of the library.
type Error struct {
	Code Code
	// Text has the details: the argument, its value and the allowed ones, or the story of a call.
	Text string
	// MayHaveExecuted is false if the request of a call was not executed and will not be. The call can be repeated then, whatever the
	// request does.
	MayHaveExecuted bool
}

func (e *Error) Error() string { return e.Text }

// Is makes errors.Is(err, &Error{Code: ErrDeadline}) compare the codes, and errors.Is(err, context.DeadlineExceeded) true for a deadline.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == e.Code || target == context.DeadlineExceeded && e.Code == ErrDeadline
}

// attempt runs a function of the library, and reads the text of its error from the same thread of the system.
func attempt(run func() C.int32_t) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	number := run()
	if number < 0 {
		return 0, &Error{Code: Code(number), Text: C.GoString(C.apus_last_error())}
	}
	return int(number), nil
}

// closed is the error of an operation on a node that was closed.
func closed() error {
	return &Error{Code: ErrClosed, Text: "the node is closed"}
}
