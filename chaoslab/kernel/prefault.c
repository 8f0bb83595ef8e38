/* Maps fresh memory of a program in batches: saves `import torch` a third of its time in
 * user-mode Linux. Preloaded into every program of a guest (LD_PRELOAD), where the host has a C
 * compiler; without it everything works, only slower.
 *
 * Why: in user-mode Linux each page that a program touches for the first time is a fault of some
 * 100 us (signals and ptrace stops of a host process). When a protection changes, the kernel
 * brings all pages of that range to the host process in one go (fix_range_common in
 * arch/um/kernel/tlb.c of Linux 6.1). So: have the kernel allocate the pages of a new range
 * (MADV_POPULATE_WRITE, Linux 5.14), then change their protection and change it back. One run over
 * 64 MiB: 18 us for a page this way, 99 us without. It can go when user-mode Linux maps more than
 * the one page that faulted.
 *
 * What is served: the heap (malloc grows it by MALLOC_TOP_PAD_, which the guest sets to 1 MiB)
 * and small anonymous mappings (Python's arenas).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096UL
#define LARGEST_MAPPING (1UL << 20) /* beyond it a program may well not touch all */
#define LARGEST_GROWTH (64UL << 20)
#define POPULATE_WRITE 23 /* linux/mman.h, MADV_POPULATE_WRITE */

extern void *__curbrk; /* glibc: the end of the heap */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

static uintptr_t known_end;

static void map_at_once(uintptr_t from, uintptr_t to)
{
    int saved = errno;

    from = (from + PAGE - 1) & ~(PAGE - 1);
    to &= ~(PAGE - 1);
    if (from < to && syscall(SYS_madvise, from, to - from, POPULATE_WRITE) == 0) {
        /* adding a right and not taking one: other threads may be using this memory */
        syscall(SYS_mprotect, from, to - from, PROT_READ | PROT_WRITE | PROT_EXEC);
        syscall(SYS_mprotect, from, to - from, PROT_READ | PROT_WRITE);
    }
    errno = saved;
}

static inline void *after_growth(void *result)
{
    uintptr_t end = (uintptr_t)__curbrk, before;

    if (__builtin_expect(end != known_end, 0)) {
        before = __atomic_exchange_n(&known_end, end, __ATOMIC_RELAXED);
        if (before && end > before && end - before <= LARGEST_GROWTH)
            map_at_once(before, end);
    }
    return result;
}

void *malloc(size_t size) { return after_growth(__libc_malloc(size)); }

void *calloc(size_t count, size_t size) { return after_growth(__libc_calloc(count, size)); }

void *realloc(void *old, size_t size) { return after_growth(__libc_realloc(old, size)); }

int posix_memalign(void **result, size_t alignment, size_t size)
{
    void *memory;

    if (alignment < sizeof(void *) || (alignment & (alignment - 1)))
        return EINVAL;
    memory = after_growth(__libc_memalign(alignment, size));
    if (!memory)
        return ENOMEM;
    *result = memory;
    return 0;
}

void *mmap(void *where, size_t size, int rights, int flags, int fd, off_t offset)
{
    void *memory = (void *)syscall(SYS_mmap, where, size, rights, flags, fd, offset);
    int private = (flags & (MAP_ANONYMOUS | MAP_PRIVATE)) == (MAP_ANONYMOUS | MAP_PRIVATE);
    int special = flags & (MAP_STACK | MAP_NORESERVE | MAP_GROWSDOWN);

    if (memory != MAP_FAILED && private && !special && rights == (PROT_READ | PROT_WRITE) &&
        size <= LARGEST_MAPPING)
        map_at_once((uintptr_t)memory, (uintptr_t)memory + size);
    return memory;
}

void *mmap64(void *where, size_t size, int rights, int flags, int fd, off_t offset)
    __attribute__((alias("mmap")));
