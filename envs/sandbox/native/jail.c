/* What a command may not do: no capabilities, no way to gain any, and no system calls that open the kernel. */
#include "sandbox.h"
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#define X32_BIT 0x40000000u
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "palestra-sandbox knows the system calls of x86_64 and aarch64"
#endif

/* Numbers above 424 are the same on every architecture; old headers lack some. */
enum { SYS_open_tree_ = 428, SYS_move_mount_ = 429, SYS_fsopen_ = 430, SYS_fsconfig_ = 431, SYS_fsmount_ = 432,
       SYS_fspick_ = 433, SYS_clone3_ = 435, SYS_mount_setattr_ = 442, SYS_io_uring_setup_ = 425,
       SYS_io_uring_enter_ = 426, SYS_io_uring_register_ = 427, SYS_process_madvise_ = 440, SYS_pidfd_getfd_ = 438,
       SYS_statmount_ = 457, SYS_listmount_ = 458, SYS_open_tree_attr_ = 467 };

static const int DENIED[] = {
    /* mounts and namespaces */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns, SYS_open_tree_, SYS_move_mount_,
    SYS_fsopen_, SYS_fsconfig_, SYS_fsmount_, SYS_fspick_, SYS_mount_setattr_, SYS_open_tree_attr_, SYS_statmount_,
    SYS_listmount_, SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_quotactl, SYS_swapon, SYS_swapoff,
    /* other processes */
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_pidfd_getfd_, SYS_process_madvise_,
    /* the kernel itself */
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup_, SYS_io_uring_enter_, SYS_io_uring_register_,
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_kexec_load, SYS_kexec_file_load, SYS_init_module,
    SYS_finit_module, SYS_delete_module, SYS_reboot, SYS_acct, SYS_syslog, SYS_vhangup, SYS_lookup_dcookie,
    SYS_fanotify_init, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_nfsservctl,
    SYS_sethostname, SYS_setdomainname,
#if defined(__x86_64__)
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS__sysctl, SYS_uselib, SYS_ustat, SYS_sysfs,
#endif
};
enum { DENIED_COUNT = sizeof DENIED / sizeof *DENIED };

static void fail(const char *what) {
    perror(what);
    _exit(126);
}

static void set_capabilities(uint32_t kept) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{kept, kept, 0}, {0, 0, 0}};
    if (syscall(SYS_capset, &header, data)) fail("capset");
}

void keep_agent_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct has[2];
    if (syscall(SYS_capget, &header, has)) fail("capget");
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    for (int cap = 0; cap <= 63; cap++) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); /* EINVAL past the last, EPERM without */
    set_capabilities(has[0].permitted & (1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_KILL));
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) fail("dumpable");
}

/* uid -1: stay who we are (in a user namespace that knows one user). */
void give_up_privileges(uid_t uid, gid_t gid) {
    if (uid != (uid_t)-1) {
        if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid)) fail("setresuid");
    }
    set_capabilities(0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
}

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define NO(error) RETURN(SECCOMP_RET_ERRNO | (error))
#define NEW_NAMESPACE \
    (CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

static int by_number(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

/* A denied call answers EPERM; clone3 ENOSYS, so that the C library falls back to clone, whose flags can be seen;
 * of the address families only unix, internet and netlink exist (vsock for one knows no network namespaces). The
 * kernel runs the program for every call there is when it is installed: hence the search in groups. */
void install_seccomp_filter(void) {
    enum { GROUP = 8, GROUPS = (DENIED_COUNT + GROUP - 1) / GROUP };
    struct sock_filter program[DENIED_COUNT * 2 + GROUPS * 2 + 40];
    int denied[DENIED_COUNT], n = 0;
    memcpy(denied, DENIED, sizeof denied);
    qsort(denied, DENIED_COUNT, sizeof *denied, by_number);
#define PUT(...) do { struct sock_filter s[] = {__VA_ARGS__}; \
        memcpy(program + n, s, sizeof s); n += sizeof s / sizeof *s; } while (0)
    PUT(LOAD(arch), EQUAL(NATIVE_ARCH, 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS), LOAD(nr));
#ifdef X32_BIT
    PUT(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1), NO(ENOSYS));
#endif
    for (int first = 0, end = n + (DENIED_COUNT + GROUPS) * 2; first < DENIED_COUNT; first += GROUP) {
        int next = first + GROUP < DENIED_COUNT ? first + GROUP : DENIED_COUNT;
        PUT(BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, (uint32_t)denied[next - 1], (next - first) * 2 + 1, 0));
        for (int i = first; i < next; i++) PUT(EQUAL((uint32_t)denied[i], 0, 1), NO(EPERM));
        PUT(BPF_STMT(BPF_JMP | BPF_JA, end - n - 1));
    }
    PUT(EQUAL(SYS_clone3_, 0, 1), NO(ENOSYS));
    PUT(EQUAL(SYS_clone, 0, 4), LOAD(args[0]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACE, 0, 1), NO(EPERM),
        RETURN(SECCOMP_RET_ALLOW));
    PUT(EQUAL(SYS_ioctl, 0, 4), LOAD(args[1]), EQUAL(0x5412 /* TIOCSTI */, 0, 1), NO(EPERM), RETURN(SECCOMP_RET_ALLOW));
    PUT(EQUAL(SYS_socket, 0, 6), LOAD(args[0]), EQUAL(AF_UNIX, 4, 0), EQUAL(AF_INET, 3, 0), EQUAL(AF_INET6, 2, 0),
        EQUAL(AF_NETLINK, 1, 0), NO(EAFNOSUPPORT), RETURN(SECCOMP_RET_ALLOW));
    struct sock_fprog filter = {n, program};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0)) fail("seccomp");
}
