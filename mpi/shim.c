// clang-format off
//go:build mpi && cgo

// clang-format on

#define _POSIX_C_SOURCE 200809L
#include "shim.h"

#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

// Calls come from one thread at a time, except rmpi_abort.

static MPI_Comm comm = MPI_COMM_NULL;
static int64_t piece_bytes;
static rmpi_failure failure;

const rmpi_failure *rmpi_last_failure(void) { return &failure; }

static int fail(int code) {
  memset(&failure, 0, sizeof failure);
  failure.code = code;
  if (code <= 0) return code;
  int class = MPI_ERR_UNKNOWN, length = 0;
  char text[MPI_MAX_ERROR_STRING] = "";
  MPI_Error_class(code, &class);
  if (MPI_Error_string(code, text, &length) == MPI_SUCCESS) {
    snprintf(failure.text, sizeof failure.text, "%s", text);
  }
  static const struct {
    int class;
    const char *name;
  } names[] = {
      {MPI_ERR_BUFFER, "MPI_ERR_BUFFER"},       {MPI_ERR_COUNT, "MPI_ERR_COUNT"},
      {MPI_ERR_TYPE, "MPI_ERR_TYPE"},           {MPI_ERR_TAG, "MPI_ERR_TAG"},
      {MPI_ERR_COMM, "MPI_ERR_COMM"},           {MPI_ERR_RANK, "MPI_ERR_RANK"},
      {MPI_ERR_REQUEST, "MPI_ERR_REQUEST"},     {MPI_ERR_ARG, "MPI_ERR_ARG"},
      {MPI_ERR_UNKNOWN, "MPI_ERR_UNKNOWN"},     {MPI_ERR_TRUNCATE, "MPI_ERR_TRUNCATE"},
      {MPI_ERR_OTHER, "MPI_ERR_OTHER"},         {MPI_ERR_INTERN, "MPI_ERR_INTERN"},
      {MPI_ERR_NO_MEM, "MPI_ERR_NO_MEM"},       {MPI_ERR_PENDING, "MPI_ERR_PENDING"},
      {MPI_ERR_IN_STATUS, "MPI_ERR_IN_STATUS"},
  };
  snprintf(failure.class_name, sizeof failure.class_name, "MPI error class %d", class);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (names[i].class == class) {
      snprintf(failure.class_name, sizeof failure.class_name, "%s", names[i].name);
    }
  }
  return code;
}

// ---- start and stop ----

void rmpi_prepare(void) {
  // UCX would take SIGSEGV and its like away from the Go runtime.
  setenv("UCX_ERROR_SIGNALS", "", 0);
}

static int local_ranks(rmpi_world *w) {
  MPI_Comm local;
  int rc = MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, w->rank, MPI_INFO_NULL, &local);
  if (rc != MPI_SUCCESS) return rc;
  MPI_Comm_rank(local, &w->local_rank);
  MPI_Comm_size(local, &w->local_size);
  return MPI_Comm_free(&local);
}

// Signals that the Go runtime has handlers for. MPICH puts its own in place of that of USR1, without
// SA_ONSTACK, and calls the runtime's from there: the process ends if a goroutine was running.
static const int SIGNALS[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1};
enum { SIGNAL_COUNT = sizeof SIGNALS / sizeof *SIGNALS };

int rmpi_start(int64_t bytes, rmpi_world *w) {
  piece_bytes = bytes;
  struct sigaction before[SIGNAL_COUNT];
  for (int i = 0; i < SIGNAL_COUNT; i++) sigaction(SIGNALS[i], NULL, &before[i]);
  int level, rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  for (int i = 0; i < SIGNAL_COUNT; i++) sigaction(SIGNALS[i], &before[i], NULL);
  if (rc != MPI_SUCCESS) return fail(rc);
  w->thread_level = level >= MPI_THREAD_MULTIPLE     ? 3
                    : level >= MPI_THREAD_SERIALIZED ? 2
                    : level >= MPI_THREAD_FUNNELED   ? 1
                                                     : 0;
  rc = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  // MPICH charges errors of a completed request to MPI_COMM_WORLD or _SELF.
  if (rc == MPI_SUCCESS) rc = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  if (rc == MPI_SUCCESS) rc = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (rc == MPI_SUCCESS) rc = MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  if (rc == MPI_SUCCESS) rc = MPI_Comm_rank(comm, &w->rank);
  if (rc == MPI_SUCCESS) rc = MPI_Comm_size(comm, &w->size);
  if (rc == MPI_SUCCESS) rc = local_ranks(w);
  if (rc != MPI_SUCCESS) return fail(rc);
  int found = 0, *tag_ub = NULL;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_ub, &found);
  w->tag_ub = found ? *tag_ub : 32767;
  return RMPI_OK;
}

int rmpi_stop(void) {
  int rc = MPI_Comm_free(&comm);
  if (rc == MPI_SUCCESS) rc = MPI_Finalize();
  return rc == MPI_SUCCESS ? RMPI_OK : fail(rc);
}

void rmpi_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

// ---- what it is ----

void rmpi_library_version(char *text, int bytes) {
  char all[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(all, &length);
  all[strcspn(all, "\r\n")] = 0;
  snprintf(text, (size_t)bytes, "%s", all);
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *rmpi_header_version(void) {
#if defined(OPEN_MPI)
  return "Open MPI " STRING(OMPI_MAJOR_VERSION) "." STRING(OMPI_MINOR_VERSION) "." STRING(
      OMPI_RELEASE_VERSION) ", MPI " STRING(MPI_VERSION) "." STRING(MPI_SUBVERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION ", MPI " STRING(MPI_VERSION) "." STRING(MPI_SUBVERSION);
#else
  return "MPI " STRING(MPI_VERSION) "." STRING(MPI_SUBVERSION);
#endif
}

int rmpi_is_open_mpi(void) {
#if defined(OPEN_MPI)
  return 1;
#else
  return 0;
#endif
}

int rmpi_is_mpich(void) {
#if defined(MPICH_VERSION)
  return 1;
#else
  return 0;
#endif
}

void rmpi_hostname(char *text, int bytes) {
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_Get_processor_name(name, &length);
  snprintf(text, (size_t)bytes, "%s", name);
}

int rmpi_cuda_support(void) {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() ? 1 : 0;
#elif defined(MPIX_GPU_SUPPORT_CUDA)
  int yes = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &yes) == MPI_SUCCESS ? yes : -1;
#else
  return -1;
#endif
}

int rmpi_cuda_enabled(void) {
  int on = -1;
#if defined(OPEN_MPI)
  int level, index, verbosity, bind, scope, count, length = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return -1;
  MPI_Datatype type;
  MPI_T_enum names;
  MPI_T_cvar_handle handle;
  if (MPI_T_cvar_get_index("opal_cuda_support", &index) == MPI_SUCCESS &&
      MPI_T_cvar_get_info(index, NULL, &length, &verbosity, &type, &names, NULL, &length, &bind, &scope) ==
          MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
    char value[64] = {0};  // of a number as wide as the library likes
    int size;
    if (count == 1 && MPI_Type_size(type, &size) == MPI_SUCCESS && size <= (int)sizeof value &&
        MPI_T_cvar_read(handle, value) == MPI_SUCCESS) {
      on = memcmp(value, (char[sizeof value]){0}, sizeof value) != 0;
    }
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
#endif
  return on;
}

// ---- messages ----

// A message is sent as pieces of piece_bytes and a last one that is shorter,
// maybe empty. So the last piece says that it is the last, and a receive of
// another size meets a piece of another size, whatever the two sizes are.
// All pieces are posted at once: MPI keeps their order, and that of messages
// with the same peer and tag.
typedef struct {
  MPI_Request *pieces;
  int64_t count, capacity;
  int64_t next;  // the first piece that is not known to be done
  int64_t bytes;
  int used, is_send, peer, tag;
  int64_t next_free;
} transfer;

static transfer *transfers;  // request r is transfers[r - 1]
static int64_t transfers_used, transfers_capacity, first_free;

static int64_t transfer_new(void) {
  if (first_free > 0) {
    int64_t r = first_free;
    first_free = transfers[r - 1].next_free;
    return r;
  }
  if (transfers_used == transfers_capacity) {
    int64_t capacity = transfers_capacity ? 2 * transfers_capacity : 64;
    transfer *t = realloc(transfers, (size_t)capacity * sizeof *t);
    if (t == NULL) return 0;
    memset(t + transfers_capacity, 0, (size_t)(capacity - transfers_capacity) * sizeof *t);
    transfers = t;
    transfers_capacity = capacity;
  }
  return ++transfers_used;
}

static void transfer_free(int64_t r) {
  transfer *t = &transfers[r - 1];
  t->used = 0;
  t->next_free = first_free;
  first_free = r;
}

static int transfer_fail(const transfer *t, int code, int64_t got) {
  fail(code);
  failure.is_send = t->is_send;
  failure.peer = t->peer;
  failure.tag = t->tag;
  failure.bytes = t->bytes;
  failure.got = got;
  return RMPI_FAILED;
}

static int64_t piece_size(const transfer *t, int64_t i) {
  return i + 1 < t->count ? piece_bytes : t->bytes - i * piece_bytes;
}

static int64_t post(char *p, int64_t bytes, int peer, int tag, int is_send) {
  transfer what = {.bytes = bytes, .is_send = is_send, .peer = peer, .tag = tag};
  int64_t count = bytes / piece_bytes + 1, r = transfer_new();
  if (r == 0) {
    transfer_fail(&what, RMPI_NO_MEMORY, 0);
    return 0;
  }
  transfer *t = &transfers[r - 1];
  if (t->capacity < count) {
    MPI_Request *pieces = realloc(t->pieces, (size_t)count * sizeof *pieces);
    if (pieces == NULL) {
      transfer_free(r);
      transfer_fail(&what, RMPI_NO_MEMORY, 0);
      return 0;
    }
    t->pieces = pieces;
    t->capacity = count;
  }
  t->used = 1;
  t->is_send = is_send;
  t->peer = peer;
  t->tag = tag;
  t->bytes = bytes;
  t->count = count;
  t->next = 0;
  for (int64_t i = 0; i < count; i++) {
    char *at = p == NULL ? NULL : p + i * piece_bytes;
    int n = (int)piece_size(t, i);
    int rc = is_send ? MPI_Isend(at, n, MPI_BYTE, peer, tag, comm, &t->pieces[i])
                     : MPI_Irecv(at, n, MPI_BYTE, peer, tag, comm, &t->pieces[i]);
    if (rc != MPI_SUCCESS) {
      // Earlier pieces may be under way: the slot is given up.
      transfer_fail(t, rc, 0);
      return 0;
    }
  }
  return r;
}

int64_t rmpi_irecv(void *p, int64_t bytes, int peer, int tag) { return post(p, bytes, peer, tag, 0); }

int64_t rmpi_isend(const void *p, int64_t bytes, int peer, int tag) {
  return post((char *)p, bytes, peer, tag, 1);
}

// give_up leaves a failed receive's later pieces to nobody, as far as MPI lets it.
static void give_up(transfer *t) {
  t->used = 0;
  for (int64_t i = t->next + 1; i < t->count && !t->is_send; i++) {
    if (t->pieces[i] != MPI_REQUEST_NULL) {
      MPI_Cancel(&t->pieces[i]);
      MPI_Request_free(&t->pieces[i]);
    }
  }
}

int rmpi_test(int64_t r) {
  if (r < 1 || r > transfers_used || !transfers[r - 1].used) {
    fail(RMPI_NO_REQUEST);
    return RMPI_FAILED;
  }
  transfer *t = &transfers[r - 1];
  for (; t->next < t->count; t->next++) {
    int done = 0, got = 0;
    MPI_Status status;
    int rc = MPI_Test(&t->pieces[t->next], &done, &status);
    if (rc != MPI_SUCCESS) {
      // Open MPI counts what was sent, MPICH what there was room for.
      if (!t->is_send) MPI_Get_count(&status, MPI_BYTE, &got);
      give_up(t);
      return transfer_fail(t, rc, got > piece_size(t, t->next) ? t->next * piece_bytes + got : 0);
    }
    if (!done) return RMPI_PENDING;
    if (t->is_send) continue;
    rc = MPI_Get_count(&status, MPI_BYTE, &got);
    if (rc != MPI_SUCCESS || got != piece_size(t, t->next)) {
      give_up(t);
      return transfer_fail(t, rc != MPI_SUCCESS ? rc : RMPI_SHORT, t->next * piece_bytes + got);
    }
  }
  transfer_free(r);
  return RMPI_DONE;
}

// ---- memory and time ----

void *rmpi_alloc(int64_t bytes) {
  size_t size = ((size_t)bytes + 63) / 64 * 64;
  if (size == 0) size = 64;
  void *p = aligned_alloc(64, size);
  if (p != NULL) memset(p, 0, size);
  return p;
}

void rmpi_free(void *p) { free(p); }

void rmpi_pause(int64_t nanoseconds) {
  if (nanoseconds == 0) {
    sched_yield();
    return;
  }
  struct timespec t = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
  nanosleep(&t, NULL);
}
