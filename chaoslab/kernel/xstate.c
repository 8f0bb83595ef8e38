/* Lets a user-mode kernel run where a CPU has more registers than it knows of.

   Linux takes a process's extended state (x87, SSE, AVX, ...) by PTRACE_SETREGSET only if it is
   whole: as long as the largest that this machine can have. User-mode Linux before 6.13 keeps
   2696 bytes. AMX makes it 11008, and the guest's first process cannot start ("ptrace set fp regs
   failed, errno = 14"). This is loaded in front of the C library, and fills up the rest of the
   state with zeros. That is what it was: what reaches beyond 2696 bytes is for a process that has
   asked for AMX, and the guest's kernel refuses that (arch_prctl), so that the mask in the state's
   header never names it.

   Free-standing: needs a compiler, no headers. The guest's kernel has one thread.

   Sources: xstateregs_set in arch/x86/kernel/fpu/regset.c; HOST_FP_SIZE in
   arch/x86/um/user-offsets.c; ptrace(2) for what the C library's function does. */

enum { SYS_PTRACE = 101, PEEK_FIRST = 1, PEEK_LAST = 3, GETREGSET = 0x4204, SETREGSET = 0x4205 };
enum { NT_X86_XSTATE = 0x202, LARGEST = 1 << 16 };

struct part {
    unsigned char *bytes;
    unsigned long size;
};

extern long syscall(long number, ...);

static unsigned char state[LARGEST];

static long set_whole(long pid, struct part *given)
{
    static unsigned long size;
    struct part whole = {state, LARGEST};

    if (size == 0) {
        if (syscall(SYS_PTRACE, (long)GETREGSET, pid, (long)NT_X86_XSTATE, &whole) != 0)
            return -1;
        size = whole.size;
    }
    if (given->size >= size)
        return syscall(SYS_PTRACE, (long)SETREGSET, pid, (long)NT_X86_XSTATE, given);
    for (unsigned long i = 0; i < size; i++)
        state[i] = i < given->size ? given->bytes[i] : 0;
    whole.size = size;
    return syscall(SYS_PTRACE, (long)SETREGSET, pid, (long)NT_X86_XSTATE, &whole);
}

long ptrace(int request, int pid, void *address, void *data)
{
    long peeked;

    if (request == SETREGSET && (long)address == NT_X86_XSTATE)
        return set_whole(pid, data);
    if (request < PEEK_FIRST || request > PEEK_LAST)
        return syscall(SYS_PTRACE, (long)request, (long)pid, address, data);
    if (syscall(SYS_PTRACE, (long)request, (long)pid, address, &peeked) != 0)
        return -1;
    return peeked;
}
