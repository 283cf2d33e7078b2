/* names.c - the names of categories, phases and techniques, and their getters. */
#include "names.h"

#include "structs.h"

const ms__name ms__categories[MS_N_CATEGORIES] = {[MS_CATEGORY_ACTIVATION] = {"activations", "activations"},
                                                  [MS_CATEGORY_PARAMETER] = {"parameters", "parameters"},
                                                  [MS_CATEGORY_BUFFER] = {"buffers", "buffers"},
                                                  [MS_CATEGORY_INPUT] = {"inputs", "inputs"},
                                                  [MS_CATEGORY_GRADIENT] = {"gradients", "gradients"},
                                                  [MS_CATEGORY_OPTIMIZER] = {"optimizer state", "optimizer_state"},
                                                  [MS_CATEGORY_TEMPORARY] = {"temporaries", "temporaries"},
                                                  [MS_CATEGORY_LIBRARY] = {"library workspaces", "library_workspaces"}};

const ms__phase_row ms__phases[MS_N_PHASES] = {
    [MS_PHASE_SETUP] = {{"setup", "setup"}, "between steps"},
    [MS_PHASE_FORWARD] = {{"forward", "forward"}, "in forward"},
    [MS_PHASE_LOSS] = {{"loss", "loss"}, "in the loss"},
    [MS_PHASE_BACKWARD] = {{"backward", "backward"}, "in backward"},
    [MS_PHASE_OPTIMIZER_FIRST] = {{"optimizer step (first)", "optimizer_step_first"}, "in the first optimizer step"},
    [MS_PHASE_OPTIMIZER] = {{"optimizer step", "optimizer_step"}, "in the optimizer step"},
    [MS_PHASE_END] = {{"end", "end"}, "between steps"}};

static const ms__name techniques[] = {{"recompute", "recompute"},
                                      {"offload", "offload"},
                                      {"tile", "tile"},
                                      {"16-bit computation", "half"},
                                      {"8-bit optimizer", "8bit"}};

enum { N_TECHNIQUES = sizeof techniques / sizeof *techniques };

int ms__bit_number(uint32_t flag, int n) {
    for (int i = 0; i < n; i++)
        if (flag == 1U << i) return i;
    return -1;
}

ms_status ms__name_get(const ms__name *names, int64_t n, int64_t index, ms_name_info *out, const char *function) {
    if (index < 0 || index >= n) return ms__fail(MS_E_INVALID, "%s: this number is unknown", function);
    const ms_name_info info = {.name = names[index].name, .identifier = names[index].identifier};
    return ms__struct_write(MS__STRUCT(ms_name_info), &info, out);
}

ms_status ms_category_get_info(int32_t category, ms_name_info *out) {
    return ms__name_get(ms__categories, MS_N_CATEGORIES, category, out, "ms_category_get_info");
}

ms_status ms_technique_get_info(uint32_t technique, ms_name_info *out) {
    int index = ms__bit_number(technique, N_TECHNIQUES);
    return ms__name_get(techniques, N_TECHNIQUES, index, out, "ms_technique_get_info");
}

ms_status ms_phase_get_info(int32_t phase, ms_phase_info *out) {
    if (phase < 0 || phase >= MS_N_PHASES) return ms__fail(MS_E_INVALID, "phase %d is unknown", (int)phase);
    const ms__phase_row *row = &ms__phases[phase];
    const ms_phase_info info = {.name = row->name.name, .identifier = row->name.identifier, .place = row->place};
    return ms__struct_write(MS__STRUCT(ms_phase_info), &info, out);
}
