// The plain C interface between Go and MPI. No type of <mpi.h> crosses it, so
// one source builds with Open MPI, MPICH and their relatives.
#ifndef RINGATTN_MPI_SHIM_H
#define RINGATTN_MPI_SHIM_H

#include <stdint.h>

// What a call returns beside MPI's own error codes, which are positive.
enum {
  RMPI_OK = 0,
  RMPI_SHORT = -1,       // a receive got fewer bytes than it wanted
  RMPI_NO_REQUEST = -2,  // there is no such request
  RMPI_NO_MEMORY = -3,
};

// What rmpi_test returns.
enum { RMPI_PENDING = 0, RMPI_DONE = 1, RMPI_FAILED = 2 };

typedef struct {
  int rank, size;
  int local_rank, local_size;  // among the ranks that share this rank's memory
  int thread_level;            // 0 single, 1 funneled, 2 serialized, 3 multiple
  int tag_ub;                  // greatest tag
} rmpi_world;

// What the last call that failed has to say.
typedef struct {
  int code;
  char class_name[64];
  char text[512];
  int is_send, peer, tag;  // of a transfer
  int64_t bytes;           // wanted or sent
  int64_t got;             // received in all with RMPI_SHORT, at least with other errors, 0 unknown
} rmpi_failure;

const rmpi_failure *rmpi_last_failure(void);

// rmpi_prepare sets in the environment what MPI_Init is to find there. rmpi_start
// starts MPI and a communicator of its own, whose messages are cut into pieces
// of piece_bytes. rmpi_stop ends MPI.
void rmpi_prepare(void);
int rmpi_start(int64_t piece_bytes, rmpi_world *world);
int rmpi_stop(void);
void rmpi_abort(int code);

// Names of the library, "" if unknown; they may be asked for before rmpi_start.
void rmpi_library_version(char *text, int bytes);
const char *rmpi_header_version(void);
int rmpi_is_open_mpi(void);
int rmpi_is_mpich(void);
// rmpi_hostname needs rmpi_start, and so do the two that tell of device pointers: what
// the library says of them, and whether Open MPI's parameter opal_cuda_support is on; 1
// yes, 0 no, -1 it does not say.
void rmpi_hostname(char *text, int bytes);
int rmpi_cuda_support(void);
int rmpi_cuda_enabled(void);

// rmpi_irecv and rmpi_isend return a request > 0, or 0 if they failed.
int64_t rmpi_irecv(void *p, int64_t bytes, int peer, int tag);
int64_t rmpi_isend(const void *p, int64_t bytes, int peer, int tag);
int rmpi_test(int64_t request);

// Zeroed memory, aligned to 64 bytes.
void *rmpi_alloc(int64_t bytes);
void rmpi_free(void *p);
// rmpi_pause sleeps; for 0 nanoseconds it yields.
void rmpi_pause(int64_t nanoseconds);

#endif
