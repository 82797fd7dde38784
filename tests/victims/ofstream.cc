// SPDX-License-Identifier: MIT
//
// ofstream: a C++ program that saves by std::ofstream, patches its header by seekp, and reports tellp.
//   ofstream PATH MIB

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <vector>

int main(int argc, char **argv) {
    if (argc < 3) {
        return 2;
    }
    std::vector<std::uint32_t> block((1u << 20) / 4);
    std::ofstream out(argv[1], std::ios::binary | std::ios::trunc);
    out << "header, to be patched\n";
    for (int i = 0; i < std::atoi(argv[2]); i++) {
        for (std::size_t k = 0; k < block.size(); k++) {
            block[k] = static_cast<std::uint32_t>(k * 2654435761u + static_cast<unsigned>(i));
        }
        out.write(reinterpret_cast<const char *>(block.data()), static_cast<std::streamsize>(block.size() * 4));
        out << "record " << i << " ends at " << out.tellp() << "\n";
    }
    auto end = out.tellp();
    out.seekp(0);
    out << "HEADER";
    out.seekp(5 << 20); // far behind, in a chunk that has been handed over
    out << "PATCH";
    out.seekp(0, std::ios::end);
    std::cout << end << " " << out.tellp() << "\n";
    out << "tail\n";
    out.close();
    return out.good() ? 0 : 1;
}
