/* nproc_fns.c - what may be called: nothing else is */
#include "nproc.h"

#define F(type, name, is_long, keeps, fn)                                                          \
    {                                                                                              \
        TW_NP_##type, name, is_long, keeps, fn                                                     \
    }

const struct tw_np_fn tw_np_fns[] = {
        F(DATASET, "create", true, 'c', tw_np_data_create),
        F(DATASET, "add_dataset", true, 'c', tw_np_data_add),
        F(DATASET, "mix_dataset", true, 'c', tw_np_data_mix),
        F(DATASET, "set_template", true, 'c', tw_np_data_template),
        F(DATASET, "map", true, 'c', tw_np_data_map),
        F(DATASET, "filter", true, 'c', tw_np_data_filter),
        F(DATASET, "encode", true, 'c', tw_np_data_encode),
        F(DATASET, "check", true, 'c', tw_np_data_check),
        F(DATASET, "cast_column", false, 0, tw_np_data_cast),
        F(DATASET, "pack_dataset", true, 'c', tw_np_data_pack),
        F(DATASET, "save_as", true, 0, tw_np_data_save),
        F(DATASET, "flush_save", true, 0, tw_np_data_flush),
        F(DATASET, "__getitem__", false, 0, tw_np_data_item),
        F(DATASET, "__len__", false, 0, tw_np_data_len),
        F(DATASET, "__iter__", true, 'w', tw_np_data_iter),
        F(DATASET, "__next__", false, 'w', tw_np_data_next),
        F(LOADER, "create", false, 'c', tw_np_loader_create),
        F(LOADER, "set_processor", false, 'c', tw_np_loader_processor),
        F(LOADER, "skip_consumed_samples", false, 'w', tw_np_loader_skip),
        F(LOADER, "resume_from_checkpoint", false, 'w', tw_np_loader_skip),
        F(LOADER, "get_state", false, 0, tw_np_loader_state),
        F(LOADER, "__len__", false, 0, tw_np_loader_len),
        F(LOADER, "__iter__", false, 'w', tw_np_loader_iter),
        F(LOADER, "__next__", false, 'w', tw_np_loader_next),
        F(PREPROCESSOR, "create", false, 'c', tw_np_preprocessor_create),
        F(PREPROCESSOR, "__call__", true, 0, tw_np_preprocessor_call),
        F(PROCESSOR, "create", false, 'c', tw_np_processor_create),
        F(PROCESSOR, "__call__", false, 0, tw_np_processor_call),
        F(REWARD, "create", false, 'c', tw_np_reward_create),
        F(REWARD, "__call__", true, 0, tw_np_reward_call),
        F(TEMPLATE, "create", true, 'c', tw_np_template_create),
        F(TEMPLATE, "encode", true, 'c', tw_np_template_encode),
        F(TEMPLATE, "batch_encode", true, 0, tw_np_template_batch),
        F(TEMPLATE, "decode", false, 0, tw_np_template_decode),
        {0},
};

void tw_np_impl_free(struct tw_np_obj *o)
{
    switch (o->type) {
    case TW_NP_DATASET:
        tw_np_data_free(o->impl);
        break;
    case TW_NP_LOADER:
        tw_np_loader_free(o->impl);
        break;
    case TW_NP_PREPROCESSOR:
        tw_np_proc_unref(o->impl);
        break;
    case TW_NP_PROCESSOR:
        tw_np_collate_unref(o->impl);
        break;
    case TW_NP_REWARD:
        tw_reward_fn_close(o->impl);
        break;
    case TW_NP_TEMPLATE:
        tw_np_tmpl_unref(o->impl);
        break;
    }
}
