# Build helpers, one job each.

# Finds what the enabled options need; nothing is ever downloaded here.
function(volvelle_find_dependencies)
  find_package(HWY REQUIRED CONFIG NAMES HWY hwy)
  find_package(nlohmann_json REQUIRED)
  find_package(Eigen3 3.3 REQUIRED NO_MODULE)
  find_package(Threads REQUIRED)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
  if(VOLVELLE_RUNTIME)
    find_package(ggml REQUIRED CONFIG)
    find_package(llama 0.5 REQUIRED CONFIG)
    find_package(CLI11 REQUIRED)
    find_package(fmt REQUIRED)
    # find_package makes imported targets visible here only; the top level needs them too.
    set_target_properties(llama ggml::ggml PROPERTIES IMPORTED_GLOBAL TRUE)
    set_target_properties(CLI11::CLI11 fmt::fmt PROPERTIES IMPORTED_GLOBAL TRUE)
  endif()
  set_target_properties(hwy::hwy Eigen3::Eigen nlohmann_json::nlohmann_json Threads::Threads PkgConfig::XXHASH
                        PROPERTIES IMPORTED_GLOBAL TRUE)
endfunction()

# Warnings and sanitizers of our own code; third-party headers are system headers.
function(volvelle_compile_settings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # false positives on string + string
  endif()
  if(VOLVELLE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(VOLVELLE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${VOLVELLE_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=undefined)
    target_link_options(${target} PUBLIC -fsanitize=${VOLVELLE_SANITIZE})
  endif()
endfunction()

# volvelle_add_module(NAME LINKS modules... PRIVATE_LINKS third-party...)
# builds libvolvelle_NAME.a from src/NAME/*.cpp; public headers are in include/volvelle/NAME.
function(volvelle_add_module name)
  cmake_parse_arguments(arg "" "" "LINKS;PRIVATE_LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  add_library(volvelle_${name} STATIC ${sources})
  target_include_directories(volvelle_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(volvelle_${name} PUBLIC ${arg_LINKS} Threads::Threads
                                         PRIVATE ${arg_PRIVATE_LINKS})
  target_compile_definitions(volvelle_${name} PRIVATE VOLVELLE_VERSION="${PROJECT_VERSION}")
  volvelle_compile_settings(volvelle_${name})
  set_property(GLOBAL APPEND PROPERTY VOLVELLE_MODULES volvelle_${name})
endfunction()
