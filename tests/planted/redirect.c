/* Redirects the CUDA runtime of a loaded library to this one, in the memory of this process alone.
 *
 * libnccl.so.2 of the wheels holds the runtime within itself, with its symbols: at the entry of each of its functions
 * cuda* a jump to ours is written, or to a trap that says which one is not planted. libcudart.so exports the same
 * names. Of NVIDIA's files nothing is changed or copied.
 */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "planted.h"

enum { JUMP = 14, TRAP = 32 };
static unsigned char *traps, *next_trap;

static int not_planted(const char *name) {
    fprintf(stderr, "planted: %s is not planted\n", name);
    return failed(NOT_SUPPORTED);
}

/* jmp *0(%rip), and the address behind it */
static void jump(unsigned char *at, const void *to) {
    static const unsigned char code[] = {0xff, 0x25, 0, 0, 0, 0};
    memcpy(at, code, sizeof code);
    memcpy(at + sizeof code, &to, sizeof to);
}

/* mov $name, %rdi; jmp not_planted */
static void *trap(const char *name) {
    unsigned char *at = next_trap;
    const char *kept = strdup(name);
    next_trap += TRAP;
    at[0] = 0x48;
    at[1] = 0xbf;
    memcpy(at + 2, &kept, sizeof kept);
    jump(at + 10, (void *)not_planted);
    return at;
}

static int of_runtime(const Elf64_Sym *symbol, const char *name) {
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || !symbol->st_value || symbol->st_size < JUMP) return 0;
    return strncmp(name, "cuda", 4) == 0 || strcmp(name, "__cudaPushCallConfiguration") == 0 ||
           strcmp(name, "__cudaPopCallConfiguration") == 0;
}

static int planted(const char *name, void **function) {
    return look_up(DEVICE_CALLS, name, function) || look_up(MEMORY_CALLS, name, function) || look_up(STREAM_CALLS, name, function);
}

static int write_jump(unsigned char *at, const void *to) {
    unsigned char *page = (unsigned char *)((uintptr_t)at & ~(uintptr_t)4095);
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return 0;
    jump(at, to);
    return mprotect(page, 8192, PROT_READ | PROT_EXEC) == 0;
}

static int redirect(const char *file, unsigned char *base, int section) {
    const Elf64_Ehdr *head = (const void *)file;
    const Elf64_Shdr *sections = (const void *)(file + head->e_shoff), *table = &sections[section];
    const Elf64_Sym *symbols = (const void *)(file + table->sh_offset);
    const char *names = file + sections[table->sh_link].sh_offset;
    int done = 0;
    for (size_t at = 0; at < table->sh_size / sizeof *symbols; at++) {
        const char *name = names + symbols[at].st_name;
        void *function;
        if (!of_runtime(&symbols[at], name)) continue;
        int ours = planted(name, &function);
        if (!write_jump(base + symbols[at].st_value, ours ? function : trap(name))) return -1;
        done += ours;
    }
    return done;
}

/* The table with the local names where there is one; a stripped library has those that it exports. */
static int best_table(const char *file) {
    const Elf64_Ehdr *head = (const void *)file;
    const Elf64_Shdr *sections = (const void *)(file + head->e_shoff);
    int best = -1;
    for (int at = 0; at < head->e_shnum; at++)
        if (sections[at].sh_type == SHT_SYMTAB || (sections[at].sh_type == SHT_DYNSYM && best < 0)) best = at;
    return best;
}

/* Load a library, or find the one of this name that is loaded, and redirect its runtime: how many functions are ours now, or -1. */
EXPORT int planted_attach(const char *path) {
    struct link_map *map = NULL;
    struct stat status;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) {
        fprintf(stderr, "planted: %s\n", dlerror());
        return -1;
    }
    if (!traps) {
        traps = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        next_trap = traps;
    }
    int at = open(map->l_name, O_RDONLY | O_CLOEXEC);
    if (at < 0 || fstat(at, &status) != 0) return -1;
    char *file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, at, 0);
    close(at);
    if (file == MAP_FAILED) return -1;
    int section = best_table(file);
    int done = section < 0 ? -1 : redirect(file, (unsigned char *)map->l_addr, section);
    munmap(file, (size_t)status.st_size);
    return done;
}
