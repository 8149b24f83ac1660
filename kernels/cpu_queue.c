// cpu_queue.c: worker threads and the queue of calls.
//
// Calls run in order. The call at the head of the queue is cut into phases of tasks
// (cpu_plan.c). Workers take tasks by number under the lock; one whose task waits for
// earlier ones, which others then have in hand, sleeps until they are done. Whoever
// finishes the last task of a phase moves on to the next phase or call. What a task
// computes does not depend on who runs it, so results are the same for any number of
// threads. Idle workers sleep.
#define _DEFAULT_SOURCE  // madvise, clock_gettime
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "cpu.h"

enum { CAPACITY = 1024 };  // calls; a caller that is further ahead waits

struct rattn_queue {
  pthread_mutex_t lock;
  pthread_cond_t work;  // for workers: tasks, a call or the end
  pthread_cond_t turn;  // for workers whose task waits for another
  pthread_cond_t done;  // for callers: a call has completed
  pthread_t *threads;
  int32_t thread_count;
  int stop;

  rattn_op ops[CAPACITY];        // call number i is at i % CAPACITY
  int64_t times[CAPACITY][2];    // when call i began and ended, ns
  int64_t enqueued, completed;   // calls so far
  int running;                   // the call number `completed` is in progress
  int64_t next, tasks, pending;  // of its phase: task to take, count, tasks not yet finished
  int32_t waiting;               // workers that wait for their turn
  rattn_job job;

  int32_t status;  // the first failure; later calls are skipped
  char failure[256];
};

// What is read again and again is on pages of 2 MiB, which cost few address
// translations.
int rattn_buffer_grow(rattn_buffer *b, int64_t bytes) {
  enum { HUGE_PAGE = 2 << 20 };
  if (bytes <= b->bytes) return 1;
  free(b->data);
  *b = (rattn_buffer){0};
  void *p;
  int huge = bytes >= HUGE_PAGE / 32;
  if (huge) bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  if (posix_memalign(&p, huge ? HUGE_PAGE : 4096, (size_t)bytes)) return 0;
#ifdef MADV_HUGEPAGE
  if (huge) madvise(p, (size_t)bytes, MADV_HUGEPAGE);
#endif
  *b = (rattn_buffer){p, bytes};
  return 1;
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void set_failure(rattn_queue *q, int32_t status, const char *text) {
  if (q->status != RATTN_OK) return;
  q->status = status;
  snprintf(q->failure, sizeof q->failure, "%s", text);
}

// Moves to the next phase that has tasks, through as many calls as it takes. The
// lock is held; it is released while the plan is made, which nobody else touches
// as long as running is set and no task is left.
static void advance(rattn_queue *q) {
  for (;;) {
    int begin = !q->running;
    if (begin && q->completed == q->enqueued) return;
    q->running = 1;
    if (begin) q->times[q->completed % CAPACITY][0] = now_ns();
    q->next = q->tasks = 0;
    int64_t n = 0;
    if (q->status == RATTN_OK) {
      char text[256] = "";
      pthread_mutex_unlock(&q->lock);
      if (begin) n = rattn_job_begin(&q->job, &q->ops[q->completed % CAPACITY], text, sizeof text);
      if (n == 0) n = rattn_job_next(&q->job);
      pthread_mutex_lock(&q->lock);
      if (n < 0) set_failure(q, (int32_t)-n, text);
    }
    if (n > 0) {
      q->tasks = q->pending = n;
      if (n > 1) pthread_cond_broadcast(&q->work);
      return;
    }
    q->running = 0;
    q->times[q->completed % CAPACITY][1] = now_ns();
    q->completed++;
    pthread_cond_broadcast(&q->done);
  }
}

static void *worker(void *arg) {
  rattn_queue *q = arg;
  rattn_buffer workspace = {0};
  pthread_mutex_lock(&q->lock);
  for (;;) {
    if (q->next < q->tasks) {
      int64_t task = q->next++;
      while (!rattn_job_ready(&q->job, task)) {
        q->waiting++;
        pthread_cond_wait(&q->turn, &q->lock);
        q->waiting--;
      }
      int skip = q->status != RATTN_OK;
      pthread_mutex_unlock(&q->lock);
      int64_t floats = skip ? 0 : q->job.kernels->workspace(&q->job);
      int have = rattn_buffer_grow(&workspace, floats * (int64_t)sizeof(float));
      if (have && !skip) q->job.run(&q->job, workspace.data, task);
      pthread_mutex_lock(&q->lock);
      if (!have) {
        char text[128];
        snprintf(text, sizeof text, "no memory for a worker's %lld bytes at head_dim %d",
                 (long long)floats * 4, q->job.shape.head_dim);
        set_failure(q, RATTN_ERR_MEMORY, text);
      }
      rattn_job_done(&q->job, task);
      if (q->waiting) pthread_cond_broadcast(&q->turn);
      if (--q->pending == 0) advance(q);
    } else if (!q->running && q->completed < q->enqueued) {
      advance(q);
    } else if (q->stop) {
      break;
    } else {
      pthread_cond_wait(&q->work, &q->lock);
    }
  }
  pthread_mutex_unlock(&q->lock);
  free(workspace.data);
  return NULL;
}

static void stop_workers(rattn_queue *q) {
  pthread_mutex_lock(&q->lock);
  q->stop = 1;
  pthread_cond_broadcast(&q->work);
  pthread_mutex_unlock(&q->lock);
  for (int32_t i = 0; i < q->thread_count; i++) pthread_join(q->threads[i], NULL);
  rattn_job_free(&q->job);
  pthread_cond_destroy(&q->done);
  pthread_cond_destroy(&q->turn);
  pthread_cond_destroy(&q->work);
  pthread_mutex_destroy(&q->lock);
  free(q->threads);
  free(q);
}

rattn_queue *rattn_queue_open(const rattn_isa *isa, int32_t threads, int64_t block_bytes) {
  rattn_queue *q = calloc(1, sizeof *q);
  if (!q) return NULL;
  q->job.isa = isa;
  q->job.block_bytes = block_bytes;
  q->job.threads = threads;
  pthread_mutex_init(&q->lock, NULL);
  pthread_cond_init(&q->work, NULL);
  pthread_cond_init(&q->done, NULL);
  pthread_cond_init(&q->turn, NULL);
  q->threads = calloc((size_t)threads, sizeof *q->threads);
  // Workers block all signals: those of a Go program are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (q->threads && q->thread_count < threads &&
         !pthread_create(&q->threads[q->thread_count], NULL, worker, q))
    q->thread_count++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (q->thread_count == threads) return q;
  stop_workers(q);
  return NULL;
}

void rattn_queue_close(rattn_queue *q) {
  rattn_queue_sync(q, NULL, 0);
  stop_workers(q);
}

void rattn_queue_add(rattn_queue *q, const rattn_op *op) {
  pthread_mutex_lock(&q->lock);
  while (q->enqueued - q->completed == CAPACITY) pthread_cond_wait(&q->done, &q->lock);
  q->ops[q->enqueued++ % CAPACITY] = *op;
  pthread_cond_signal(&q->work);
  pthread_mutex_unlock(&q->lock);
}

int64_t rattn_queue_last(rattn_queue *q) {
  pthread_mutex_lock(&q->lock);
  int64_t n = q->enqueued;
  pthread_mutex_unlock(&q->lock);
  return n;
}

static int32_t status_of(rattn_queue *q, char *text, size_t size) {
  if (q->status != RATTN_OK && text) snprintf(text, size, "%s", q->failure);
  return q->status;
}

int32_t rattn_queue_query(rattn_queue *q, int64_t event, int32_t *done, char *text, size_t size) {
  pthread_mutex_lock(&q->lock);
  *done = q->completed >= event;
  int32_t status = status_of(q, text, size);
  pthread_mutex_unlock(&q->lock);
  return status;
}

int rattn_queue_ran(rattn_queue *q, int64_t from, int64_t to, int64_t *began, int64_t *ended) {
  pthread_mutex_lock(&q->lock);
  const int64_t now = now_ns();
  // A call's times are there until its place goes to another one.
  const int known = from < to && to <= q->completed && from > q->enqueued - CAPACITY;
  if (known) {
    *began = now - q->times[from % CAPACITY][0];
    *ended = now - q->times[(to - 1) % CAPACITY][1];
  }
  pthread_mutex_unlock(&q->lock);
  return known;
}

int32_t rattn_queue_sync(rattn_queue *q, char *text, size_t size) {
  pthread_mutex_lock(&q->lock);
  while (q->completed < q->enqueued) pthread_cond_wait(&q->done, &q->lock);
  int32_t status = status_of(q, text, size);
  pthread_mutex_unlock(&q->lock);
  return status;
}
