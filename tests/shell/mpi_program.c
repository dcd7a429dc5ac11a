/* A program that initializes MPI itself, with Lockstep communicators over its MPI communicators. */
#include <ctype.h>
#include <lockstep/mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank;

/* Returns mpi if the environment requests it, otherwise the best backend for ranks of one machine. */
static const char *expected_backend(int size) {
    const char *wanted = getenv("LOCKSTEP_BACKEND");
    return wanted != NULL && strcmp(wanted, "mpi") == 0 ? wanted : size == 1 ? "self" : "shm";
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("rank %d, line %d: not true: %s (%s)\n", rank, __LINE__, #condition, ls_error_message());           \
            fflush(stdout);                                                                                            \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
        }                                                                                                              \
    } while (0)

/* Sums over `comm`. Rank r contributes the value r, first one number, then many. */
static void add(ls_comm *comm) {
    enum { MANY = 300000 };
    static float numbers[MANY];
    const int size = ls_comm_size(comm);
    const float sum = (float)(size * (size - 1) / 2);
    for (size_t count = 1; count <= MANY; count += MANY - 1) {
        for (size_t i = 0; i < count; i++) {
            numbers[i] = (float)ls_comm_rank(comm);
        }
        CHECK(ls_comm_allreduce(comm, numbers, numbers, count, LS_F32, LS_SUM, NULL) == LS_OK);
        CHECK(numbers[0] == sum && numbers[count - 1] == sum);
    }
}

/* The program has its own messages on the same MPI communicator. It sends before a Lockstep call, and receives after
 * it. */
static void add_between_messages(MPI_Comm mpi, ls_comm *comm) {
    int size, mine, got = -1;
    MPI_Comm_size(mpi, &size);
    MPI_Comm_rank(mpi, &mine);
    MPI_Request request;
    MPI_Isend(&mine, 1, MPI_INT, (mine + 1) % size, 0, mpi, &request);
    add(comm);
    MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, mpi, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(got == (mine + size - 1) % size);
}

static void use_parts(void) {
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2 != 0 ? 1 : MPI_UNDEFINED, -rank, &half); /* odd ranks in reverse order */
    if (half == MPI_COMM_NULL) {
        CHECK(ls_comm_from_mpi(half, NULL) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
        CHECK(strcmp(ls_error_message(), "ls_comm_from_mpi: the communicator is MPI_COMM_NULL") == 0);
        return;
    }
    int size, mine;
    MPI_Comm_size(half, &size);
    MPI_Comm_rank(half, &mine);
    ls_comm *comm = ls_comm_from_mpi(half, NULL);
    CHECK(ls_comm_size(comm) == size && ls_comm_rank(comm) == mine && ls_comm_local_size(comm) == size);
    MPI_Comm_free(&half);
    add(comm);
    ls_comm_free(comm);
}

/* The caller may select the backend, but must select the same backend on all ranks. */
static void choose_backend(int size) {
    ls_comm *comm = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = "mpi"});
    CHECK(comm != NULL && strcmp(ls_comm_backend(comm), "mpi") == 0 && ls_comm_local_size(comm) == size);
    add(comm);
    ls_comm_free(comm);
    comm = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = "shm"});
    CHECK(comm != NULL && strcmp(ls_comm_backend(comm), "shm") == 0 && ls_comm_local_size(comm) == size);
    CHECK(ls_comm_local_rank(comm) == rank);
    add(comm);
    ls_comm_free(comm);
    CHECK(ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = "tcp"}) == NULL);
    CHECK(ls_error_status() == LS_ERR_ARGUMENT && strstr(ls_error_message(), "not \"tcp\"") != NULL);
    if (size > 1) {
        CHECK(ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = rank == 1 ? "mpi" : "shm"}) == NULL);
        CHECK(ls_error_status() == LS_ERR_MISMATCH);
        CHECK(strstr(ls_error_message(), "rank 0 selects backend \"shm\", but rank 1 selects \"mpi\"") != NULL);
    }
}

static void split_it(ls_comm *comm) {
    ls_comm *part = NULL;
    CHECK(ls_comm_split(comm, rank / 2, 0, &part) == LS_OK);
    ls_comm_free(comm); /* the split communicator outlives its parent */
    add(part);
    ls_comm_free(part);
}

/* The same with Fortran handles, which do not identify the MPI library. */
static void use_fortran_handles(int size) {
    ls_comm *comm = ls_comm_from_mpi_fint(MPI_Comm_c2f(MPI_COMM_WORLD), &(ls_init_options){.backend = "mpi"});
    CHECK(ls_comm_size(comm) == size && ls_comm_rank(comm) == rank && strcmp(ls_comm_backend(comm), "mpi") == 0);
    add(comm);
    ls_comm_free(comm);
    CHECK(ls_comm_from_mpi_fint(MPI_Comm_c2f(MPI_COMM_NULL), NULL) == NULL);
    CHECK(strcmp(ls_error_message(), "ls_comm_from_mpi_fint: the communicator is MPI_COMM_NULL") == 0);
}

/* Handles that are invalid, or belong to another library, are refused, and MPI's error handler is unchanged. */
static void refuse_foreign_handles(void) {
    const char *other = strcmp(LS_MPI_LIBRARY, "openmpi") == 0 ? "mpich" : "openmpi";
    const MPI_Comm world = MPI_COMM_WORLD;
    MPI_Errhandler before, after;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    CHECK(ls_comm_from_mpi_fint(-1, NULL) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_message(), "ls_comm_from_mpi_fint: MPI says that the handle is not a valid") != NULL);
    CHECK(ls_comm_from_mpi_fint(1000000, NULL) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
    CHECK(before == after);
    CHECK(ls_comm_from_mpi_handle(other, &world, NULL) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_message(), "but this process is linked with") != NULL ||
          strstr(ls_error_message(), "there is no backend \"mpi\"") != NULL);
}

static void use_world(void) {
    ls_comm *world = ls_init(&(ls_init_options){.backend = "mpi"});
    ls_comm *comm = ls_comm_from_mpi(MPI_COMM_WORLD, NULL);
    CHECK(ls_world() == world && comm != world);
    add(world);
    add(comm);
    CHECK(ls_finalize() == LS_OK);
    add(comm);
    ls_comm_free(comm);
}

/* MPI is finalized before the communicators that use it are freed. */
static int finalize_early(void) {
    static const char said[] =
        "the program has called MPI_Finalize: call ls_finalize or ls_comm_free before MPI_Finalize";
    float number = 1, other = 1;
    ls_work *finished, *unfinished;
    ls_comm *comm = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = "mpi"});
    CHECK(comm != NULL && ls_init(&(ls_init_options){.backend = "mpi"}) != NULL);
    CHECK(ls_comm_allreduce(comm, &number, &number, 1, LS_F32, LS_SUM, &finished) == LS_OK);
    while (!ls_work_done(finished)) {
    }
    CHECK(ls_comm_recv(comm, &other, 1, LS_F32, 1 - rank, 9, &unfinished) == LS_OK);
    MPI_Finalize();
    CHECK(ls_work_done(finished) && ls_work_wait(finished) == LS_OK);
    CHECK(ls_work_done(unfinished) && ls_work_wait(unfinished) == LS_ERR_STATE);
    const bool call = ls_comm_barrier(comm, NULL) == LS_ERR_STATE && strstr(ls_error_message(), said) != NULL;
    const bool end = ls_finalize() == LS_ERR_STATE && strstr(ls_error_message(), said) != NULL;
    ls_comm_free(comm);
    return call && end && ls_work_wait(unfinished) == LS_ERR_STATE ? 0 : 1;
}

/* Also calls MPI_Finalize too early, but with backend shm, which does not use MPI after ls_init. */
static int finalize_early_on_shm(void) {
    static const char said[] =
        "ls_finalize: the program has called MPI_Finalize: call ls_finalize or ls_comm_free before MPI_Finalize";
    ls_comm *world = ls_init(&(ls_init_options){.backend = "shm"});
    CHECK(world != NULL);
    MPI_Finalize();
    add(world);
    return ls_finalize() == LS_ERR_STATE && strcmp(ls_error_message(), said) == 0 && ls_world() == NULL ? 0 : 1;
}

/* A world of one rank does not need MPI to finalize. */
static int finalize_early_alone(void) {
    static const char said[] =
        "ls_finalize: the program has called MPI_Finalize: call ls_finalize or ls_comm_free before MPI_Finalize";
    ls_comm *world = ls_init(&(ls_init_options){.backend = "mpi"});
    CHECK(world != NULL && ls_comm_size(world) == 1);
    MPI_Finalize();
    return ls_finalize() == LS_ERR_STATE && strcmp(ls_error_message(), said) == 0 && ls_world() == NULL ? 0 : 1;
}

/* ---- thread levels ----------------------------------------------------------------------------------------------- */

typedef struct call {
    ls_comm *comm;
    ls_comm *made;
    ls_status status[2];
    char message[2][512];
} call;

static void *call_from_thread(void *argument) {
    call *own = argument;
    own->status[0] = ls_comm_barrier(own->comm, NULL);
    strncpy(own->message[0], ls_error_message(), sizeof own->message[0] - 1);
    own->made = ls_comm_from_mpi(MPI_COMM_SELF, NULL);
    own->status[1] = ls_error_status();
    strncpy(own->message[1], ls_error_message(), sizeof own->message[1] - 1);
    return NULL;
}

/* Calls from a thread other than the main thread are refused, and the communicator stays usable. */
static int call_from_wrong_thread(void) {
    static const char said[] = ", which allows calls from the main thread only: make this call in the main thread, or "
                               "start MPI with MPI_THREAD_MULTIPLE";
    pthread_t thread;
    call own = {.comm = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = "mpi"})};
    CHECK(own.comm != NULL && pthread_create(&thread, NULL, call_from_thread, &own) == 0);
    pthread_join(thread, NULL);
    CHECK(own.status[0] == LS_ERR_STATE && strncmp(own.message[0], "ls_comm_barrier: MPI was started with", 37) == 0);
    CHECK(own.made == NULL && own.status[1] == LS_ERR_STATE);
    CHECK(strstr(own.message[0], said) != NULL && strstr(own.message[1], said) != NULL);
    add(own.comm);
    ls_comm_free(own.comm);
    MPI_Finalize();
    return 0;
}

static atomic_bool receives;

static void *receive(void *argument) {
    float number = 0;
    receives = true;
    return (void *)(size_t)ls_comm_recv(argument, &number, 1, LS_F32, 0, 3, NULL);
}

enum { PATIENCE = 60 }; /* seconds until the test gives up and fails */

/*
 * Rank 1 makes a call on a second communicator while its other thread waits on the first. After the call was refused,
 * rank 0 sends the message.
 */
static int call_at_once(const char *file) {
    static const char said[] = "MPI was started with MPI_THREAD_SERIALIZED, which allows one thread at a time, and "
                               "a different thread is inside a call";
    ls_comm *comm = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = "mpi"});
    ls_comm *other = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = "mpi"});
    float number = 1;
    CHECK(comm != NULL && other != NULL);
    if (rank == 0) {
        const time_t deadline = time(NULL) + PATIENCE;
        while (access(file, F_OK) != 0 && time(NULL) < deadline) {
            usleep(1000);
        }
        CHECK(ls_comm_send(comm, &number, 1, LS_F32, 1, 3, NULL) == LS_OK);
    } else {
        pthread_t thread;
        void *received = NULL;
        ls_status status = LS_OK;
        CHECK(pthread_create(&thread, NULL, receive, comm) == 0);
        while (!receives) { /* calls before the other thread's call are allowed */
            usleep(100);
        }
        for (const time_t deadline = time(NULL) + PATIENCE; status == LS_OK && time(NULL) < deadline;) {
            status = ls_comm_send(other, &number, 1, LS_F32, 1, 3, NULL);
            usleep(100);
        }
        const bool refused = status == LS_ERR_STATE && strstr(ls_error_message(), said) != NULL;
        fclose(fopen(file, "w"));
        pthread_join(thread, &received);
        CHECK(refused && (ls_status)(size_t)received == LS_OK);
    }
    add(comm);
    add(other);
    ls_comm_free(comm);
    ls_comm_free(other);
    MPI_Finalize();
    return 0;
}

static int thread_level(const char *what) {
    return strcmp(what, "funneled") == 0     ? MPI_THREAD_FUNNELED
           : strcmp(what, "serialized") == 0 ? MPI_THREAD_SERIALIZED
                                             : MPI_THREAD_SINGLE;
}

/* ------------------------------------------------------------------------------------------------------------------ */

int main(int argc, char **argv) { /* no argument, or early, early-shm, early-alone, single, funneled or serialized */
    const char *what = argc > 1 ? argv[1] : "";
    int level = 0;
    if (ls_comm_from_mpi_fint(0, NULL) != NULL ||
        (ls_error_status() != LS_ERR_STATE && getenv("LOCKSTEP_MODULE_PATH") == NULL)) {
        printf("before MPI_Init: %s\n", ls_error_message());
        return 1;
    }
    MPI_Init_thread(&argc, &argv, thread_level(what), &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (strcmp(what, "early") == 0) {
        return finalize_early();
    }
    if (strcmp(what, "early-shm") == 0) {
        return finalize_early_on_shm();
    }
    if (strcmp(what, "early-alone") == 0) {
        return finalize_early_alone();
    }
    if (what[0] != '\0') {
        CHECK(level == thread_level(what));
        return level == MPI_THREAD_SERIALIZED ? call_at_once("refused") : call_from_wrong_thread();
    }
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.rank = 1}) == NULL);
    CHECK(strstr(ls_error_message(), "ls_comm_from_mpi: rank is set") == ls_error_message());
    for (int i = 0; i < 8; i++) {
        ls_comm *comm = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.timeout = 20});
        if (comm == NULL) { /* all ranks exit in order, since MPICH may lose the output of an abort */
            printf("%s\n", ls_error_message());
            MPI_Finalize();
            return 1;
        }
        CHECK(ls_comm_size(comm) == size && ls_comm_rank(comm) == rank && ls_comm_local_rank(comm) == rank);
        CHECK(strcmp(ls_comm_backend(comm), expected_backend(size)) == 0 && ls_world() == NULL);
        for (int calls = i % 4; calls > 0; calls--) {
            CHECK(ls_comm_barrier(comm, NULL) == LS_OK);
        }
        ls_comm_free(comm);
    }
    ls_comm *comm = ls_comm_from_mpi(MPI_COMM_WORLD, NULL);
    add_between_messages(MPI_COMM_WORLD, comm);
    use_parts();
    choose_backend(size);
    use_fortran_handles(size);
    refuse_foreign_handles();
    use_world();
    split_it(comm);
    int sum = 0;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); /* MPI still belongs to the program */
    CHECK(sum == size * (size - 1) / 2);
    comm = ls_comm_from_mpi(MPI_COMM_SELF, NULL);
    MPI_Finalize();
    ls_comm_free(comm); /* too late, but must not crash */
    CHECK(ls_comm_from_mpi(MPI_COMM_WORLD, NULL) == NULL && ls_error_status() == LS_ERR_STATE);
    for (const char *at = ls_error_message(); *at != '\0'; at++) {
        CHECK(isprint((unsigned char)*at));
    }
    return 0;
}
